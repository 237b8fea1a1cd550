"""MiniMax-M2, 2.1, 2.5 and 2.7.

Grouped-query attention whose query and key norms have one variance over all heads (weights [heads x d] and
[kv heads x d]), before the rotary embedding, which turns half of every head, as two halves. Every layer has experts;
the router is a sigmoid with a correction bias, renormalised, not scaled; no shared expert.

Traps: under tensor parallelism the norm's sum of squares is summed over the ranks and each rank keeps its slice of the
weight. Gathering the queries instead, as is done elsewhere, makes Megatron sum the norm's gradient once too often under
sequence parallelism. Released checkpoints are block-quantised FP8, with experts named w1 (gate), w2 (down) and w3 (up).
`intermediate_size` is an expert's width. transformers before 5.18 ignores `rotary_dim` and rotates whole heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.families.base import EXPERTS, HEADS, ROTARY, Family, common_config
from rlrun.families.parts import attention, decoder, experts, router
from rlrun.families.splits import Columns, Weight
from rlrun.plan.parts.model import ModelSpec


def weights(spec: ModelSpec) -> Iterator[Weight]:
    return decoder(spec, mixer, mlp)


def mixer(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    yield from attention(spec, n, hf, mcore)
    attn, core = hf + "self_attn.", mcore + "self_attention."
    for name, heads in (("q_norm", spec.num_heads), ("k_norm", spec.num_kv_heads)):
        width = (heads * spec.head_dim,)
        yield Weight(f"{core}{name}.weight", {f"{attn}{name}.weight": width}, Columns(), n, initial="one")


def mlp(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    moe = hf + "block_sparse_moe."
    yield from router(spec, n, moe, mcore, bias="e_score_correction_bias")
    yield from experts(spec, n, moe, mcore, parts=("w1", "w3", "w2"))


def config_json(spec: ModelSpec) -> dict[str, Any]:
    moe = spec.moe
    assert moe is not None
    return common_config(spec, "MiniMaxM2ForCausalLM", "minimax_m2") | {
        "attention_bias": False,
        "intermediate_size": moe.ffn_hidden_size,
        "num_experts_per_tok": moe.experts_per_token,
        "num_local_experts": moe.num_experts,
        "qk_norm_type": "per_layer",
        "rotary_dim": round(spec.head_dim * spec.rotary_fraction),
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "use_qk_norm": True,
        "use_routing_bias": True,
    }


MINIMAX_M2 = Family(
    name="minimax_m2",
    label="MiniMax-M2/2.1/2.5/2.7",
    fields=(*HEADS, *EXPERTS, *ROTARY),
    model_types=("minimax_m2",),
    weights=weights,
    config_json=config_json,
    names={"num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    supported={
        "attention_bias": (False, None),
        "shared_intermediate_size": (0, None),
        "qk_norm_type": ("per_layer", None),
        "use_routing_bias": (True, None),
    },
    traits={"qk_norm": "full"},
    router="sigmoid",
    untrained=("model.mtp.", "mtp.", "model.layers.{layers}."),
)
