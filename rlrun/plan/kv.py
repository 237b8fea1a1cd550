"""An engine's weights, KV cache and recurrent states on one of its GPUs."""

from __future__ import annotations

from rlrun.plan.layout import DEFAULT_FRACTION, Layout, Terms
from rlrun.plan.parameters import is_linear, share, stage_parameters
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
    """Bytes of the weights on one of an engine's GPUs, which divide experts as they divide everything else."""
    [(plain, experts)] = stage_parameters(m.spec, m.engine_tp, ep=m.engine_tp)
    return m.weight_bytes * (plain + experts)


def kv_cache(m: Layout) -> KvPlan:
    """What the engine's share has left beside its weights and the states of max_running requests, at most
    max_total_tokens."""
    each = kv_bytes_per_token(m.spec, m.engine_tp, m.weight_bytes)
    states = m.max_running * state_bytes_per_request(m.spec, m.engine_tp)
    pool = int((m.mem_fraction or DEFAULT_FRACTION) * m.gpu_bytes) - engine_weights(m) - states
    tokens = max(0, pool) // each
    if m.max_total_tokens is not None:
        tokens = min(tokens, m.max_total_tokens)
    return KvPlan(tokens, each, tokens // m.sample_tokens, m.max_running, states)


def engine_terms(m: Layout) -> Terms:
    """Weights, KV cache and states of an engine on one GPU, while it generates."""
    kv = kv_cache(m)
    return {
        "engine weights": engine_weights(m),
        "KV cache": kv.tokens * kv.bytes_per_token,
        "request states": kv.state_bytes,
    }
