"""Floating-point operations of a forward pass, in closed forms for every family; a multiplication and an addition are
two operations. Norms, activations, rotary embeddings, softmax and the embedding's look-up are not counted.

Symbols: h hidden width; V vocabulary; n heads; d head dimension; I MLP width; k active of E experts.

* A linear layer is 2 x its weights a token. Experts count k times their own size and the router's h x E, whatever E is.
* The output layer is 2hV a token.
* Attention is 4nd for every pair of a query and a key it sees (2nd each for score and value). A causal sequence of s
  tokens has s(s+1)/2 pairs, about half of s^2. Latent attention (MLA) has 2n(nope + rope + v) a pair when keys and
  values are expanded, as in training and prefill, and 2n(2 kv_rank + rope) when they are not, as in decoding.
* Sparse attention sees at most top_k keys; in its full layers the indexer scores all pairs, 2 x heads x dim.
* A gated delta net has no pairs: a token reads, decays and updates and reads again a state of key_dim x value_dim in
  each value head, 6 operations an element, and passes a convolution.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from rlrun.plan.parameters import is_linear, is_sparse
from rlrun.plan.types import ModelSpec


@dataclass(frozen=True)
class Forward:
    """Sums over all layers."""

    layers: int  # a token, without attention over other tokens
    head: int  # a token that needs logits
    pair: int  # a query and a key, in training and prefill
    decode_pair: int  # the same in decoding
    index_pair: int  # the indexer's score of a pair
    top_k: int | None  # keys that a query sees at most

    def sequence(self, tokens: float, pairs: float) -> float:
        """A sequence whose `tokens` form `pairs` causal pairs; logits of every token."""
        seen = pairs if self.top_k is None else min(pairs, self.top_k * tokens)
        return tokens * (self.layers + self.head) + seen * self.pair + pairs * self.index_pair

    def decode(self, context: float) -> float:
        """The next token behind `context` others."""
        seen = context if self.top_k is None else min(context, self.top_k)
        return self.layers + self.head + seen * self.decode_pair + context * self.index_pair


def causal_pairs(tokens: float, tokens_squared: float | None = None) -> float:
    """Pairs of a query and a key not behind it; for random lengths from the means of s and of s^2."""
    return ((tokens**2 if tokens_squared is None else tokens_squared) + tokens) / 2


@functools.lru_cache(maxsize=64)
def forward(spec: ModelSpec) -> Forward:
    """Counted once for each model: a plan asks several times."""
    layers = range(spec.num_layers)
    full = sum(not is_linear(spec, layer) for layer in layers)
    pair = decode_pair = 4 * spec.num_heads * spec.head_dim
    if spec.mla is not None:
        m = spec.mla
        pair = 2 * spec.num_heads * (m.nope_dim + m.rope_dim + m.v_dim)
        decode_pair = 2 * spec.num_heads * (2 * m.kv_rank + m.rope_dim)
    index = 0
    if spec.indexer is not None:
        index = 2 * spec.indexer.num_heads * spec.indexer.head_dim * len(spec.indexer.full_layers)
    return Forward(
        layers=sum(_mixer(spec, layer) + _mlp(spec, layer) for layer in layers),
        head=2 * spec.hidden_size * spec.vocab_size,
        pair=full * pair,
        decode_pair=full * decode_pair,
        index_pair=index,
        top_k=spec.indexer.top_k if spec.indexer is not None else None,
    )


def _mixer(spec: ModelSpec, layer: int) -> int:
    h, n = spec.hidden_size, spec.num_heads
    if is_linear(spec, layer):
        g = spec.linear_attention
        assert g is not None
        q, v = g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim
        projections = h * (2 * q + 2 * v + 2 * g.num_value_heads) + v * h
        convolution = (2 * q + v) * g.conv_kernel
        return 2 * (projections + convolution) + 6 * g.num_value_heads * g.key_dim * g.value_dim
    if spec.mla is not None:
        m = spec.mla
        weights = h * m.q_rank + m.q_rank * n * (m.nope_dim + m.rope_dim)
        weights += h * (m.kv_rank + m.rope_dim) + m.kv_rank * n * (m.nope_dim + m.v_dim) + n * m.v_dim * h
        if spec.indexer is not None and layer in spec.indexer.full_layers:
            heads, d = spec.indexer.num_heads, spec.indexer.head_dim
            weights += m.q_rank * heads * d + h * d + h * heads
        return 2 * weights
    q, kv = n * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return 2 * h * ((2 * q if spec.output_gate else q) + 2 * kv + q)


def _mlp(spec: ModelSpec, layer: int) -> int:
    h, moe = spec.hidden_size, spec.moe
    if not is_sparse(spec, layer) or moe is None:
        return 6 * h * spec.ffn_hidden_size
    width = moe.experts_per_token * moe.ffn_hidden_size + moe.shared_ffn_hidden_size
    return 6 * h * width + 2 * h * (moe.num_experts + (1 if moe.shared_gate else 0))
