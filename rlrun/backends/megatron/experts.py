"""Mixture of experts in Megatron: the fields of its configuration. Every layer has experts, one module each (no grouped
kernels, which need a library); routing is softmax over the chosen experts, in float32, without auxiliary loss."""

from __future__ import annotations

from typing import Any

from rlrun.plan.types import MoeSpec, TrainPlan


def expert_fields(moe: MoeSpec, train: TrainPlan) -> dict[str, Any]:
    """Fields of TransformerConfig for softmax routing (Qwen3-MoE); tp shares no routed expert, etp does."""
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.experts_per_token,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": False,  # over the chosen ones: the same as over all and then renormalised
        "moe_grouped_gemm": False,
        "expert_model_parallel_size": train.ep,
        "expert_tensor_parallel_size": train.etp,
    }
