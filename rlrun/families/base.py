"""What a model family declares. One file a family, in this package; no heavy imports, because a plan reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlrun.families.splits import Shape, Weight

if TYPE_CHECKING:
    from rlrun.plan.parts.model import ModelSpec

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
"""Fields of `model.architecture` that every family has."""

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
GLM_EXPERTS = (*EXPERTS, "n_shared_experts", "first_k_dense_replace", "routed_scaling_factor")

NO_WINDOW = {"attention_bias": (False, None), "use_sliding_window": (False, None)}
GLM_ROUTER = {"n_group": (1, None), "topk_group": (1, None), "norm_topk_prob": (True, None)}
GLM_NAMES = {"num_experts": "n_routed_experts"}


@dataclass(frozen=True)
class Family:
    """`fields`: of `model.architecture`, beside COMMON. `names`: fields that config.json spells differently.
    `defaults`: what the transformers class assumes when config.json leaves a field out. `supported`: accepted values of
    other keys of config.json. `traits`: what its layers are made of where no field says so (fields of ModelSpec;
    `router` is MoeSpec's). `weights`: every tensor of a checkpoint that is trained or sent, in the order of the
    checkpoint. `config_json`: what a released config.json says beside `common_config`. `untrained`: beginnings of the
    names of tensors that checkpoints may hold and that the trainer has no use for; `{layers}` is the number of layers.
    """

    name: str
    label: str  # for people
    fields: tuple[str, ...]
    model_types: tuple[str, ...]
    weights: Callable[[ModelSpec], Iterator[Weight]]
    config_json: Callable[[ModelSpec], dict[str, Any]]
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    supported: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    traits: Mapping[str, Any] = field(default_factory=dict)
    router: str = "softmax"
    untrained: tuple[str, ...] = ()
    packed_experts: bool = False  # released checkpoints hold all experts of a layer in one tensor
    beside: Callable[[ModelSpec], Mapping[str, Shape]] | None = None
    """Tensors that a checkpoint of random weights needs beside those of `weights`, so that engines take it."""


def common_config(spec: ModelSpec, architecture: str, model_type: str) -> dict[str, Any]:
    """Keys of config.json that the families share. transformers 4 reads rope_theta, 5 reads rope_parameters."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": spec.rope_theta}
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "use_cache": True,
        "vocab_size": spec.vocab_size,
    }
    if spec.mla is None:
        config["head_dim"] = spec.head_dim
    if spec.rotary_fraction != 1.0:
        config["partial_rotary_factor"] = spec.rotary_fraction
        rope["partial_rotary_factor"] = spec.rotary_fraction
    return config | {"rope_parameters": rope}
