"""Qwen3 and Qwen3-MoE.

A pre-norm decoder with grouped-query attention, an RMSNorm of one head's width on every query and key before the rotary
embedding, no biases, SwiGLU. The MoE variant has experts in every layer: softmax over the chosen experts (the same as
softmax over all, then renormalised), no shared expert.

Traps: head_dim is not hidden_size / heads. Small models tie the embedding. The class's own default of `norm_topk_prob`
is false; released checkpoints say true, and nothing else is accepted. A MoE config's `intermediate_size` is unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.families.base import DENSE, EXPERTS, HEADS, NO_WINDOW, Family, common_config
from rlrun.families.parts import attention, decoder, experts, router, swiglu
from rlrun.families.splits import Weight
from rlrun.plan.parts.model import ModelSpec


def weights(spec: ModelSpec) -> Iterator[Weight]:
    return decoder(spec, attention, mlp)


def mlp(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    if spec.moe is None:
        yield from swiglu(spec, n, hf + "mlp.", mcore + "mlp.")
    else:
        yield from router(spec, n, hf + "mlp.", mcore)
        yield from experts(spec, n, hf + "mlp.", mcore)


def dense_config(spec: ModelSpec) -> dict[str, Any]:
    own = {"attention_bias": False, "intermediate_size": spec.ffn_hidden_size}
    return common_config(spec, "Qwen3ForCausalLM", "qwen3") | own


def moe_config(spec: ModelSpec) -> dict[str, Any]:
    assert spec.moe is not None
    return common_config(spec, "Qwen3MoeForCausalLM", "qwen3_moe") | {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "intermediate_size": spec.ffn_hidden_size,
        "mlp_only_layers": [],
        "moe_intermediate_size": spec.moe.ffn_hidden_size,
        "norm_topk_prob": True,
        "num_experts": spec.moe.num_experts,
        "num_experts_per_tok": spec.moe.experts_per_token,
    }


QWEN3 = Family(
    name="qwen3",
    label="Qwen3",
    fields=(*HEADS, *DENSE),
    model_types=("qwen3",),
    weights=weights,
    config_json=dense_config,
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    },
    supported=NO_WINDOW,
    traits={"qk_norm": "head"},
)

QWEN3_MOE = Family(
    name="qwen3_moe",
    label="Qwen3-MoE",
    fields=(*HEADS, *EXPERTS),
    model_types=("qwen3_moe",),
    weights=weights,
    config_json=moe_config,
    supported=NO_WINDOW | {"decoder_sparse_step": (1, None), "mlp_only_layers": ([], None), "norm_topk_prob": (True,)},
    traits={"qk_norm": "head"},
)
