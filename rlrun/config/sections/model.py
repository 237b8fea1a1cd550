"""Model: family, source and shape."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlrun.config.sections.base import NOT_SEMANTIC, NonNegative, Positive, Section
from rlrun.families import FAMILIES

FAMILY_NAMES = tuple(FAMILIES)


class ArchitectureConfig(Section):
    """Expected architecture, in the spelling of a Hugging Face config.json. With `model.path` set, every value given
    here is compared with the checkpoint's own config.json; without weights on disk the plan is made from it. Each
    family has fields of its own: those it needs have to be given, those it does not have are refused."""

    hidden_size: Positive
    """Width of the residual stream."""
    num_hidden_layers: Positive
    """Transformer layers."""
    num_attention_heads: Positive
    """Query heads."""
    num_key_value_heads: Positive
    """Key/value heads (grouped-query attention)."""
    head_dim: Positive | None = None
    """Width of one head; not hidden_size / num_attention_heads in Qwen3. Not for latent attention (MLA)."""
    intermediate_size: Positive | None = None
    """Width of the SwiGLU MLP of dense layers."""
    vocab_size: Positive
    """Rows of the embedding."""
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    """Epsilon of every RMSNorm."""
    rope_theta: Annotated[float, Field(gt=0)] = 1e6
    """Base of the rotary embedding."""
    max_position_embeddings: Positive = 40960
    """Longest sequence the model was made for, in tokens."""
    tie_word_embeddings: bool = False
    """Whether the output layer is the embedding."""
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a head that is rotated (MiniMax: rotary_dim / head_dim)."""
    attention_bias: bool | None = None
    """Biases of the query, key and value projections (GLM)."""
    use_qk_norm: bool | None = None
    """RMSNorm on every head's query and key (glm4_moe)."""
    num_experts: Positive | None = None
    """Routed experts of a layer (n_routed_experts in GLM, num_local_experts in MiniMax)."""
    num_experts_per_tok: Positive | None = None
    """Experts that a token is sent to."""
    moe_intermediate_size: Positive | None = None
    """Width of one expert (intermediate_size in MiniMax)."""
    shared_expert_intermediate_size: Positive | None = None
    """Width of the gated expert that every token passes (Qwen3.5)."""
    routed_scaling_factor: Annotated[float, Field(gt=0)] | None = None
    """Factor of the routed experts' weights (GLM)."""
    n_shared_experts: Positive | None = None
    """Experts that every token passes, each moe_intermediate_size wide (GLM)."""
    first_k_dense_replace: NonNegative | None = None
    """First layers that have a dense MLP instead of experts (GLM)."""
    full_attention_interval: Positive | None = None
    """Each so-manieth layer has full attention, the others a gated delta net (Qwen3.5)."""
    linear_num_key_heads: Positive | None = None
    """Key heads of a gated delta net."""
    linear_num_value_heads: Positive | None = None
    """Value heads of a gated delta net."""
    linear_key_head_dim: Positive | None = None
    """Width of a key head of a gated delta net."""
    linear_value_head_dim: Positive | None = None
    """Width of a value head of a gated delta net."""
    linear_conv_kernel_dim: Positive | None = None
    """Tokens that a gated delta net's convolution sees."""
    q_lora_rank: Positive | None = None
    """Width of the query latent (MLA)."""
    kv_lora_rank: Positive | None = None
    """Width of the key/value latent (MLA), which is what the KV cache holds."""
    qk_nope_head_dim: Positive | None = None
    """Part of a query or key head without rotation (MLA)."""
    qk_rope_head_dim: Positive | None = None
    """Rotated part of a query or key head (MLA)."""
    v_head_dim: Positive | None = None
    """Width of a value head (MLA)."""
    index_n_heads: Positive | None = None
    """Heads of the sparse attention's indexer."""
    index_head_dim: Positive | None = None
    """Width of an indexer head."""
    index_topk: Positive | None = None
    """Keys that a query attends to."""
    index_topk_freq: Positive | None = None
    """Layers that share one selection of keys; 1 when each has its own."""
    index_skip_topk_offset: NonNegative | None = None
    """First layers that all have their own selection, before sharing starts."""


class ModelConfig(Section):
    name: str = Field(json_schema_extra=NOT_SEMANTIC)
    """Label used in reports."""
    family: Literal[FAMILY_NAMES]  # type: ignore[valid-type]
    """Which weight mapping and layer spec to use. All can be planned; what can be trained is said by the plan."""
    path: str | None = None
    """Local directory of a Hugging Face checkpoint, or a Hub id (org/name). Null only with init=random."""
    init: Literal["pretrained", "random"] = "pretrained"
    """pretrained reads `path`; random makes a checkpoint from `architecture` and `seed` inside the run folder."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and activations; auto is float32 on cpu and bfloat16 on cuda."""
    gdn_backend: Literal["auto", "fla", "flashqla", "torch"] = Field(default="auto", json_schema_extra=NOT_SEMANTIC)
    """Kernels of the trainer's gated delta nets (Qwen3.5). fla (flash-linear-attention) and flashqla (FlashQLA, heads
    of 128 columns, Hopper or data-centre Blackwell) need their package, a GPU and bfloat16; torch runs anywhere. auto
    is fla where it is installed and can run, otherwise torch."""
    alphabet: str | None = None
    """Characters of the character-level tokenizer made for init=random."""
    architecture: ArchitectureConfig
    """Shape of the network."""
