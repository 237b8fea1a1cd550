"""The model, decided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MoeSpec:
    """Mixture of experts, in every layer from `first_dense` on."""

    num_experts: int
    experts_per_token: int
    ffn_hidden_size: int  # of one expert
    shared_ffn_hidden_size: int  # of the experts every token passes; 0 without
    shared_gate: bool
    first_dense: int
    score: str = "softmax"  # softmax over the chosen | sigmoid, with a correction bias for the selection
    scaling: float = 1.0  # of the chosen experts' weights, which sum to 1 before


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention: ranks of the two latents, widths of one head's parts."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class LinearAttentionSpec:
    """Gated delta net in all layers but each `full_interval`-th."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    full_interval: int


@dataclass(frozen=True)
class IndexerSpec:
    """DeepSeek sparse attention's selection of keys; only `full_layers` have weights of their own."""

    num_heads: int
    head_dim: int
    top_k: int
    full_layers: tuple[int, ...]
    freq: int = 1  # layers that share one selection
    offset: int = 0  # first layers that all have their own


@dataclass(frozen=True)
class ModelSpec:
    """Architecture in numbers, from the checkpoint's config.json (or `model.architecture` without one)."""

    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tied_embeddings: bool
    num_parameters: int
    qkv_bias: bool = False
    qk_norm: str = "head"  # none | head (one weight for all heads) | full (over all heads at once)
    output_gate: bool = False  # attention output gated by a second half of the query projection
    sandwich_norms: bool = False  # also norms behind attention and MLP
    zero_centered_norms: bool = False  # norms multiply by 1 + weight
    rotary_fraction: float = 1.0
    rotary_interleaved: bool = False  # rotates pairs of neighbours, not of halves
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    linear_attention: LinearAttentionSpec | None = None
    indexer: IndexerSpec | None = None


@dataclass(frozen=True)
class ModelPlan:
    name: str
    spec: ModelSpec
    init: str  # pretrained | random
    path: str | None  # local directory or Hub id; None when init is random (made in <run_dir>/model)
    alphabet: str | None
    dtype: str  # float32 | bfloat16
