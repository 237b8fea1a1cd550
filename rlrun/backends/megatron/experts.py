"""Mixture of experts and latent attention in Megatron: the fields of its configuration.

One module for each expert (no grouped kernels, which need a library). What is the same for every family, such as the
router's type and that nothing but the loss moves it, is in `rlrun.config.arguments.megatron.ALWAYS`.
"""

from __future__ import annotations

from typing import Any

from rlrun.plan.types import ModelSpec, TrainPlan


def expert_fields(spec: ModelSpec, train: TrainPlan) -> dict[str, Any]:
    """Fields of TransformerConfig; tp shares no routed expert, etp does, and tp shares the expert of every token."""
    moe = spec.moe
    if moe is None:
        return {}
    sigmoid = moe.score == "sigmoid"
    return {
        "num_moe_experts": moe.num_experts,
        "moe_layer_freq": [0] * moe.first_dense + [1] * (spec.num_layers - moe.first_dense),
        "moe_router_topk": moe.experts_per_token,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_router_score_function": moe.score,
        "moe_router_pre_softmax": False,  # over the chosen ones: the same as over all and then renormalised
        "moe_router_enable_expert_bias": sigmoid,
        "moe_router_topk_scaling_factor": moe.scaling if moe.scaling != 1.0 else None,
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size or None,
        "moe_shared_expert_gate": moe.shared_gate,
        "moe_grouped_gemm": False,
        "expert_model_parallel_size": train.ep,
        "expert_tensor_parallel_size": train.etp,
    }


def latent_fields(spec: ModelSpec) -> dict[str, Any]:
    """Fields of MLATransformerConfig. Its default rotation is yarn with factor 40; these models rotate plainly."""
    mla = spec.mla
    if mla is None:
        return {}
    return {
        "q_lora_rank": mla.q_rank,
        "kv_lora_rank": mla.kv_rank,
        "qk_head_dim": mla.nope_dim,
        "qk_pos_emb_head_dim": mla.rope_dim,
        "v_head_dim": mla.v_dim,
        "rope_type": "rope",
        "rotary_base": spec.rope_theta,
        "rotary_percent": 1.0,
    }
