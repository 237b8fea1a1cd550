"""An engine's weights, KV cache and recurrent states on one of its GPUs."""

from __future__ import annotations

from rlrun.plan.layout import DEFAULT_FRACTION, Layout, Terms
from rlrun.plan.parameters import is_linear, share, stage_parameters, stage_sizes
from rlrun.plan.types import KvPlan, ModelSpec

INDEX_CACHE = 132
"""Bytes of a token and layer that SGLang keeps for a sparse attention's indexer: 128 in FP8 and a float32 scale."""


def kv_bytes_per_token(spec: ModelSpec, tp: int, b: int = 2) -> int:
    """Bytes of the KV cache a token, on one of an engine's GPUs. A latent cache is not divided by tp; a gated delta net
    has none."""
    if spec.mla is not None:
        index = INDEX_CACHE if spec.indexer is not None else 0
        return spec.num_layers * ((spec.mla.kv_rank + spec.mla.rope_dim) * b + index)
    full = sum(not is_linear(spec, layer) for layer in range(spec.num_layers))
    return full * 2 * max(1, spec.num_kv_heads // tp) * spec.head_dim * b


def state_bytes_per_request(spec: ModelSpec, tp: int) -> int:
    """Bytes of a request whatever its length: recurrent state (float32) and convolution inputs of gated delta nets."""
    g = spec.linear_attention
    if g is None:
        return 0
    q, v = g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim
    one = g.num_value_heads * g.key_dim * g.value_dim * 4 + (2 * q + v) * (g.conv_kernel - 1) * 2
    return sum(is_linear(spec, layer) for layer in range(spec.num_layers)) * share(one, tp)


def engine_weights(m: Layout) -> int:
    """Bytes of the weights on one of an engine's GPUs, at its worst stage; they divide experts as everything else.
    Data-parallel attention has its heads once for each of its ranks; counted as if all plain weights were."""
    sizes = stage_sizes(m.spec.num_layers, m.engine_pp)
    stages = stage_parameters(m.spec, _head_ranks(m), sizes, ep=m.engine_tp)
    return m.weight_bytes * max(plain + experts for plain, experts in stages)


def _head_ranks(m: Layout) -> int:
    """Ranks that share the heads."""
    return max(1, m.engine_tp // m.engine_dp)


def kv_cache(m: Layout) -> KvPlan:
    """What the engine's share has left beside its weights and the states of max_running requests, at most
    max_total_tokens."""
    each = share(kv_bytes_per_token(m.spec, _head_ranks(m), m.weight_bytes), m.engine_pp)
    running = share(m.max_running, m.engine_dp)  # requests of one data-parallel rank
    states = share(running * state_bytes_per_request(m.spec, _head_ranks(m)), m.engine_pp)
    pool = int((m.mem_fraction or DEFAULT_FRACTION) * m.gpu_bytes) - engine_weights(m) - states
    tokens = m.engine_dp * (max(0, pool) // each)
    if m.max_total_tokens is not None:
        tokens = min(tokens, m.max_total_tokens)
    return KvPlan(tokens, each, tokens // m.sample_tokens, m.max_running, states)


def engine_terms(m: Layout) -> Terms:
    """Weights, KV cache and states of an engine on one GPU, while it generates."""
    kv = kv_cache(m)
    return {
        "engine weights": engine_weights(m),
        "KV cache": share(kv.tokens * kv.bytes_per_token, m.engine_dp),
        "request states": kv.state_bytes,
    }
