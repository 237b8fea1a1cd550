"""GLM-4.5, 4.6 and 4.7.

Grouped-query attention with biases on query, key and value; per-head query/key norms (not in Air); half of every head
is rotated, as two halves. The first layers are dense. The router is a sigmoid in float32; a correction bias takes part
in the selection of experts and not in their weights, which are renormalised and then scaled; one expert is passed by
every token, without a gate.

Traps: the correction bias is a float32 buffer, in no list of parameters, and Megatron would move it after every step
unless told not to (`moe_router_bias_update_rate` is always 0 here). Rotation is by halves, unlike GLM-4. SGLang 0.5.15
keeps a float32 copy of the router's matrix, which rlrun refreshes after every weight sync. The multi-token-prediction
layer, numbered behind the last one, is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.families.base import DENSE, GLM_EXPERTS, GLM_NAMES, GLM_ROUTER, HEADS, ROTARY, Family, common_config
from rlrun.families.parts import attention, decoder, glm_mlp
from rlrun.families.splits import Weight
from rlrun.plan.parts.model import ModelSpec

MTP_LAYER = "model.layers.{layers}."


def weights(spec: ModelSpec) -> Iterator[Weight]:
    return decoder(spec, attention, glm_mlp)


def glm_moe_config(spec: ModelSpec) -> dict[str, Any]:
    """Keys of every GLM with experts."""
    moe = spec.moe
    assert moe is not None
    return {
        "attention_bias": spec.qkv_bias,
        "first_k_dense_replace": moe.first_dense,
        "intermediate_size": spec.ffn_hidden_size,
        "moe_intermediate_size": moe.ffn_hidden_size,
        "n_group": 1,
        "n_routed_experts": moe.num_experts,
        "n_shared_experts": moe.shared_ffn_hidden_size // moe.ffn_hidden_size,
        "norm_topk_prob": True,
        "num_experts_per_tok": moe.experts_per_token,
        "num_nextn_predict_layers": 0,
        "routed_scaling_factor": moe.scaling,
        "topk_group": 1,
    }


def config_json(spec: ModelSpec) -> dict[str, Any]:
    own = glm_moe_config(spec) | {"use_qk_norm": spec.qk_norm == "head"}
    return common_config(spec, "Glm4MoeForCausalLM", "glm4_moe") | own


GLM4_MOE = Family(
    name="glm4_moe",
    label="GLM-4.5/4.6/4.7",
    fields=(*HEADS, *DENSE, *ROTARY, "attention_bias", "use_qk_norm", *GLM_EXPERTS),
    model_types=("glm4_moe",),
    weights=weights,
    config_json=config_json,
    names=GLM_NAMES,
    defaults={"routed_scaling_factor": 1.0},
    supported=GLM_ROUTER,
    router="sigmoid",
    untrained=(MTP_LAYER,),
)
