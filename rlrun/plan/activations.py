"""Bytes of activations and logits, in closed forms; `rlrun.plan.memory` says what they follow and how exact they are.

Symbols: b bytes of a weight; t tokens of a micro-batch on one rank; h hidden width; V vocabulary; q and k widths of all
query and of all key heads; I MLP width.
"""

from __future__ import annotations

from rlrun.plan.layout import Layout
from rlrun.plan.parameters import is_linear, is_sparse, share, stage_starts
from rlrun.plan.types import ModelSpec

LOGIT_ROWS = 1024
"""Rows of `rlrun.backends.megatron.logprobs.ROWS`, repeated here because that module imports torch."""

LOGIT_BYTES = 21
"""Bytes a logit takes at the worst moment: float32 logits, shifted, exponentials, product and selection for the
entropy, and a mask of one byte (21.1 when the live tensors were counted). The backward pass needs less."""

EXPERT_SKEW = 1.5
"""Head-room on the tokens that an expert-parallel rank receives: routing is not balanced."""


def layer_bytes(m: Layout, layer: int) -> int:
    """Bytes a token that one layer keeps for its backward pass, on one rank."""
    spec, b = m.spec, m.weight_bytes
    norms = (4 if spec.sandwich_norms else 2) * (4 + b) * spec.hidden_size  # a float32 copy and the output
    inner = b * (_mlp_width(spec, layer) + _gathered(m, layer)) + _mixer_bytes(spec, layer, b)
    # Cosines and sines of a head, for queries and for keys, are made in every layer.
    rotary = 4 * b * (spec.mla.rope_dim if spec.mla else spec.head_dim)
    return share(norms, m.tp if m.sequence_parallel else 1) + share(inner, m.tp) + rotary


def _mixer_bytes(spec: ModelSpec, layer: int, b: int) -> int:
    if is_linear(spec, layer):
        g = spec.linear_attention
        assert g is not None
        q, v = g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim
        return b * (2 * (2 * q + v) + g.num_value_heads * (4 * g.key_dim + 3 * g.value_dim))
    if spec.mla is not None:
        m = spec.mla
        heads = spec.num_heads * (2 * (m.nope_dim + m.rope_dim) + 2 * m.v_dim)
        return b * (2 * m.q_rank + 2 * (m.kv_rank + m.rope_dim) + heads)
    q, k = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    normed = 4 * (q + k) if spec.qk_norm != "none" else 0
    # The projection, of which v is a view; rotated q and k; the output of the kernel and its copy, end to end.
    kept = (q + 2 * k) + (q + k) + 2 * q
    return normed + b * (kept + (2 * q if spec.output_gate else 0))


def _gathered(m: Layout, layer: int) -> int:
    """Values a token that context parallelism adds: of a sample cut into 2 cp chunks, the keys and values that two
    chunks see are kept whole, one behind the other, which is cp + 1/2 times what the rank has itself."""
    if m.cp == 1 or is_linear(m.spec, layer):
        return 0
    return (2 * m.cp + 1) * key_value_width(m.spec) // 2


def key_value_width(spec: ModelSpec) -> int:
    """Values of the keys and values of a token, over all heads, as attention takes them."""
    if spec.mla is not None:
        return spec.num_heads * (spec.mla.nope_dim + spec.mla.rope_dim + spec.mla.v_dim)
    return 2 * spec.num_kv_heads * spec.head_dim


def _mlp_width(spec: ModelSpec, layer: int) -> int:
    """Values a token: both halves of the first projection, silu of one, the other with Megatron's offset, and their
    product."""
    if not is_sparse(spec, layer):
        return 5 * spec.ffn_hidden_size
    moe = spec.moe
    assert moe is not None
    routed = moe.experts_per_token * (2 * spec.hidden_size + 5 * moe.ffn_hidden_size)
    return int(EXPERT_SKEW * routed) + 5 * moe.shared_ffn_hidden_size


def largest_layer(m: Layout, stage: int) -> int:
    """Bytes of the layer of a stage that keeps most."""
    return max(_layers(m, stage), default=0)


def activations(m: Layout, stage: int) -> tuple[int, int]:
    """(bytes kept between forward and backward pass, bytes of the layer that is being recomputed).

    A stage of the 1F1B schedule holds up to pp - stage micro-batches.
    """
    layers = _layers(m, stage)
    if not m.recompute:
        return (m.pp - stage) * sum(layers), 0
    width = share(m.spec.hidden_size, m.tp if m.sequence_parallel else 1)
    return (m.pp - stage) * len(layers) * m.weight_bytes * width * m.tokens, max(layers, default=0)


def _layers(m: Layout, stage: int) -> list[int]:
    start, size = stage_starts(m.stages)[stage], m.stages[stage]
    return [layer_bytes(m, layer) * m.tokens for layer in range(start, start + size)]


def logits(m: Layout, train: bool) -> int:
    """Bytes at the worst moment of the log-probs, on the last stage: a piece of the logits, the final hidden states
    (float32 copy, output, selected rows and their gradient) and the output layer's gradient being summed up."""
    columns, h, b = share(m.spec.vocab_size, m.tp), m.spec.hidden_size, m.weight_bytes
    piece = LOGIT_BYTES * min(LOGIT_ROWS, m.tokens) * columns
    return piece + (4 + 4 * b) * h * m.tokens + (2 * b * columns * h if train else 0)


def whole_logits(m: Layout) -> int:
    """Bytes that the float32 logits of a micro-batch and their gradient would take if they were not cut into pieces:
    what ends other trainers out of memory when one long sample comes."""
    return 2 * 4 * m.tokens * share(m.spec.vocab_size, m.tp)
