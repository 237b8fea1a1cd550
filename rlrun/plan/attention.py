"""How much more the tokens of a long sample cost than those of a short one."""

from __future__ import annotations

from rlrun.plan.parameters import is_linear, is_sparse, mixer_parameters
from rlrun.plan.types import ModelSpec


def attention_share(spec: ModelSpec) -> float:
    """a, such that a sample of T tokens costs T + a T^2 times what a token costs in the weights alone.

    A token costs two operations for each weight it passes (experts: those it is sent to), and causal attention, over
    T/2 keys on average, (qk width + v width) T for each head of a layer. A layer that selects its keys pays for the
    selection alone; a gated delta net costs the same for every token.
    """
    weights = spec.vocab_size * spec.hidden_size
    per_key = 0
    for layer in range(spec.num_layers):
        weights += mixer_parameters(spec, layer) + _mlp_weights(spec, layer)
        per_key += _per_key(spec, layer)
    return per_key / (2 * weights)


def _mlp_weights(spec: ModelSpec, layer: int) -> int:
    """Weights of a layer's MLP that one token passes."""
    if not is_sparse(spec, layer):
        return 3 * spec.hidden_size * spec.ffn_hidden_size
    moe = spec.moe
    assert moe is not None
    wide = moe.experts_per_token * moe.ffn_hidden_size + moe.shared_ffn_hidden_size
    return spec.hidden_size * (moe.num_experts + 3 * wide)


def _per_key(spec: ModelSpec, layer: int) -> int:
    """Operations of one token in a layer for each token before it, halved for the causal mask: heads x widths."""
    if is_linear(spec, layer):
        return 0
    if spec.indexer is not None:
        i = spec.indexer
        return i.num_heads * i.head_dim if layer in i.full_layers else 0
    if spec.mla is not None:
        return spec.num_heads * (spec.mla.nope_dim + spec.mla.rope_dim + spec.mla.v_dim)
    return spec.num_heads * 2 * spec.head_dim
