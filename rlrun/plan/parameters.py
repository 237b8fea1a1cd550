"""Exact parameter counts of every family, of the whole model or of one rank.

Symbols, as in a Hugging Face config.json: h hidden width, I MLP width, V vocabulary, E experts. Multi-token-prediction
layers, vision towers and router bias buffers are not trained and not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rlrun.plan.types import ModelSpec


def share(count: int, parts: int) -> int:
    """One rank's part of what is divided over `parts`; rounded up, where a placement would be refused."""
    return -(-count // parts)


def is_linear(spec: ModelSpec, layer: int) -> bool:
    """Whether a layer (from 0) has a gated delta net in place of attention."""
    linear = spec.linear_attention
    return linear is not None and (layer + 1) % linear.full_interval != 0


def is_sparse(spec: ModelSpec, layer: int) -> bool:
    """Whether a layer has experts in place of a dense MLP."""
    return spec.moe is not None and layer >= spec.moe.first_dense


def mixer_parameters(spec: ModelSpec, layer: int, tp: int = 1) -> int:
    """Parameters of attention, or of what stands in for it, on one tensor-parallel rank; without the layer's norms."""
    h, heads = spec.hidden_size, spec.num_heads
    if is_linear(spec, layer):
        g = spec.linear_attention
        assert g is not None
        q, v = g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim
        # projections to q, k, v, gate z and per-head b, a; convolution; A_log, dt_bias; output. Then its norm.
        inner = h * (2 * q + 2 * v + 2 * g.num_value_heads) + (2 * q + v) * g.conv_kernel + 2 * g.num_value_heads
        return share(inner + v * h, tp) + g.value_dim
    if spec.mla is not None:
        m = spec.mla
        replicated = h * m.q_rank + m.q_rank + h * (m.kv_rank + m.rope_dim) + m.kv_rank
        heads_in = m.q_rank * (m.nope_dim + m.rope_dim) + m.kv_rank * (m.nope_dim + m.v_dim)
        if spec.indexer is not None and layer in spec.indexer.full_layers:
            n, d = spec.indexer.num_heads, spec.indexer.head_dim
            replicated += m.q_rank * n * d + h * d + 2 * d + h * n
        return replicated + share(heads * (heads_in + m.v_dim * h), tp)
    q = heads * spec.head_dim
    kv = 2 * spec.num_kv_heads * spec.head_dim
    wide = (2 * q if spec.output_gate else q) + kv
    norms = {"none": 0, "head": 2 * spec.head_dim, "full": q + kv // 2}[spec.qk_norm]
    return share(h * wide + (wide if spec.qkv_bias else 0) + q * h, tp) + norms


def layer_parameters(spec: ModelSpec, layer: int, tp: int = 1, ep: int = 1, etp: int = 1) -> tuple[int, int]:
    """(non-expert, expert) parameters of one layer on one rank; tp divides shared experts, etp the routed ones."""
    h = spec.hidden_size
    plain = mixer_parameters(spec, layer, tp) + (4 if spec.sandwich_norms else 2) * h
    if not is_sparse(spec, layer):
        return plain + share(3 * h * spec.ffn_hidden_size, tp), 0
    moe = spec.moe
    assert moe is not None
    plain += moe.num_experts * h + share(3 * h * moe.shared_ffn_hidden_size, tp) + (h if moe.shared_gate else 0)
    return plain, share(moe.num_experts, ep) * 3 * h * share(moe.ffn_hidden_size, etp)


def stage_sizes(num_layers: int, pp: int, first: int | None = None, last: int | None = None) -> list[int]:
    """Layers of each pipeline stage: those given to the first and the last, the rest in equal parts (rounded up where
    `is_even` says that there are none)."""
    middle = pp - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    each = share(left, middle) if middle > 0 else 0
    sizes = [max(0, min(each, left - i * each)) for i in range(middle)]
    return [*([] if first is None else [first]), *sizes, *([] if last is None else [last])]


def is_even(num_layers: int, pp: int, first: int | None = None, last: int | None = None) -> bool:
    """Whether the stages are as many as they should be, each has layers, and those without a number of their own have
    equally many."""
    sizes = stage_sizes(num_layers, pp, first, last)
    inner = sizes[first is not None : len(sizes) - (last is not None)]
    return len(sizes) == pp and sum(sizes) == num_layers and min(sizes) > 0 and len(set(inner)) <= 1


def stage_starts(sizes: Sequence[int]) -> list[int]:
    """First layer of each pipeline stage."""
    return [0, *itertools.accumulate(sizes)][: len(sizes)]


def stage_parameters(
    spec: ModelSpec,
    tp: int = 1,
    sizes: Sequence[int] | None = None,
    ep: int = 1,
    etp: int = 1,
    scalar_head: bool = False,
) -> list[tuple[int, int]]:
    """(non-expert, expert) parameters of one rank of each pipeline stage; `sizes` are the layers of each, by default
    one stage of all.

    The first stage has the embedding, the last the final norm and the output layer, which is a copy of a tied embedding
    unless both are on the same stage. A critic has a scalar head in its place: one weight a hidden unit.
    """
    sizes = [spec.num_layers] if sizes is None else sizes
    vocabulary = share(spec.vocab_size, tp) * spec.hidden_size
    counts = []
    for stage, (start, size) in enumerate(zip(stage_starts(sizes), sizes, strict=True)):
        layers = [layer_parameters(spec, layer, tp, ep, etp) for layer in range(start, start + size)]
        plain, experts = sum(p for p, _ in layers), sum(e for _, e in layers)
        if stage == 0:
            plain += vocabulary
        if stage == len(sizes) - 1:
            shared = spec.tied_embeddings and len(sizes) == 1
            head = spec.hidden_size if scalar_head else 0 if shared else vocabulary
            plain += spec.hidden_size + head
        counts.append((plain, experts))
    return counts


def count_parameters(spec: ModelSpec) -> int:
    """Exact number of parameters; a tied output layer is counted once."""
    [(plain, experts)] = stage_parameters(spec)
    return plain + experts
