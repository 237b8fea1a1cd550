"""What each model family is made of: the fields of `model.architecture` it has, where config.json keeps them, and the
values of config.json that its computation takes for granted. Sources: the released config.json files and the
transformers classes of the same `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RUNNABLE = ("qwen3",)
"""Families that the Megatron backend can train."""

RANDOM = ("qwen3",)
"""Families of which `rlrun.data.tiny_model` makes a checkpoint of random weights."""

COMMON = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "max_position_embeddings",
    "tie_word_embeddings",
)
"""Fields that every family has."""

HEADS = ("head_dim",)
DENSE = ("intermediate_size",)
EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
ROTARY = ("partial_rotary_factor",)
DELTA_NET = (
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
INDEXER = ("index_n_heads", "index_head_dim", "index_topk", "index_topk_freq", "index_skip_topk_offset")
GLM_EXPERTS = (*EXPERTS, "n_shared_experts", "first_k_dense_replace")


@dataclass(frozen=True)
class Family:
    """`fields`: its own, beside COMMON. `names`: fields that config.json spells differently. `defaults`: what the
    transformers class assumes when config.json leaves a field out. `supported`: accepted values of other keys."""

    fields: tuple[str, ...]
    model_types: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    supported: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


NO_WINDOW = {"attention_bias": (False, None), "use_sliding_window": (False, None)}
GLM_ROUTER = {"n_group": (1, None), "topk_group": (1, None), "norm_topk_prob": (True, None)}
GLM_NAMES = {"num_experts": "n_routed_experts"}

FAMILIES: dict[str, Family] = {
    "qwen3": Family(
        (*HEADS, *DENSE),
        ("qwen3",),
        defaults={
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
        supported=NO_WINDOW,
    ),
    "qwen3_moe": Family(
        (*HEADS, *EXPERTS),
        ("qwen3_moe",),
        # The class's own default of norm_topk_prob is false, so it has to be there.
        supported=NO_WINDOW
        | {"decoder_sparse_step": (1, None), "mlp_only_layers": ([], None), "norm_topk_prob": (True,)},
    ),
    "qwen3_5": Family(
        (*HEADS, *DENSE, *ROTARY, *DELTA_NET), ("qwen3_5", "qwen3_5_text"), supported={"attention_bias": (False, None)}
    ),
    "qwen3_5_moe": Family(
        (*HEADS, *EXPERTS, "shared_expert_intermediate_size", *ROTARY, *DELTA_NET),
        ("qwen3_5_moe", "qwen3_5_moe_text"),
        supported={"attention_bias": (False, None)},
    ),
    "glm4": Family((*HEADS, *DENSE, *ROTARY, "attention_bias"), ("glm4",)),
    "glm4_moe": Family(
        (*HEADS, *DENSE, *ROTARY, "attention_bias", "use_qk_norm", *GLM_EXPERTS),
        ("glm4_moe",),
        names=GLM_NAMES,
        supported=GLM_ROUTER,
    ),
    "glm4_moe_lite": Family(
        (*DENSE, *GLM_EXPERTS, *LATENT),
        ("glm4_moe_lite",),
        names=GLM_NAMES,
        supported=GLM_ROUTER | {"attention_bias": (False, None)},
    ),
    "glm_moe_dsa": Family(
        (*DENSE, *GLM_EXPERTS, *LATENT, *INDEXER),
        ("glm_moe_dsa",),
        names=GLM_NAMES,
        defaults={"index_topk_freq": 1, "index_skip_topk_offset": 0},
        supported=GLM_ROUTER | {"attention_bias": (False, None)},
    ),
    "minimax_m2": Family(
        (*HEADS, *EXPERTS, *ROTARY),
        ("minimax_m2",),
        names={"num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
        supported={"attention_bias": (False, None), "shared_intermediate_size": (0, None)},
    ),
}


def fields_of(family: str) -> tuple[str, ...]:
    """Fields of `model.architecture` that a family has."""
    return (*COMMON, *FAMILIES[family].fields)
