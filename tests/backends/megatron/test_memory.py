"""The bytes that the plan counts on, against what Megatron's model and optimizer hold, rank by rank.

Gradients and the shards of a distributed optimizer are compared without padding: Megatron starts each tensor of a
gradient buffer at a multiple of 64 elements and ends each bucket at a multiple of 128 and of the ranks that share it,
which the closed forms leave out, because it is a few kilobytes a tensor whatever the model's size; the buffers
themselves may exceed the plan by that much. For the same reason two ranks' shards differ a little, and together they
are what the plan says.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from megatron_plans import SPEC, make_plan, world

from rlrun.plan.layout import Layout
from rlrun.plan.memory import state
from rlrun.plan.parameters import count_parameters
from rlrun.plan.types import ModelSpec, MoeSpec, RunPlan

pytestmark = pytest.mark.engines

MOE = replace(
    SPEC,
    family="qwen3_moe",
    tied_embeddings=False,
    ffn_hidden_size=24,
    moe=MoeSpec(
        num_experts=4,
        experts_per_token=2,
        ffn_hidden_size=24,
        shared_ffn_hidden_size=0,
        shared_gate=False,
        first_dense=0,
    ),
)
LAYOUTS = {
    "tp2": ({"tp": 2}, {}),
    "tp2_untied": ({"tp": 2, "tied": False}, {}),
    "dp2": ({"dp": 2}, {}),
    "cp2": ({"cp": 2}, {}),
    "cp2_whole_optimizer": ({"cp": 2, "distributed_optimizer": False}, {}),
    "dp2_whole_optimizer": ({"dp": 2, "distributed_optimizer": False}, {}),
    "dp2_bfloat16": ({"dp": 2, "dtype": "bfloat16"}, {}),
    "dp2_bfloat16_whole_optimizer": ({"dp": 2, "dtype": "bfloat16", "distributed_optimizer": False}, {}),
    "dp2_bfloat16_gradients": ({"dp": 2, "dtype": "bfloat16"}, {"grad_dtype": "bfloat16"}),
    "pp2": ({"pp": 2}, {}),
    "pp2_untied": ({"pp": 2, "tied": False}, {}),
    "pp2_uneven": ({"pp": 2, "tied": False}, {"stage_layers": (1, 2)}),
}
EXPERTS = {
    "ep2": ({"dp": 2}, {"ep": 2}),
    "dp2": ({"dp": 2}, {}),
    "tp2_etp2": ({"tp": 2, "sequence_parallel": True}, {"etp": 2}),
    "tp2": ({"tp": 2, "sequence_parallel": True}, {}),
    "tp2_ep2": ({"tp": 2, "sequence_parallel": True}, {"ep": 2}),
}


def planned(sizes: dict, train: dict, spec: ModelSpec = SPEC) -> RunPlan:
    layers = sum(train.get("stage_layers", (spec.num_layers,)))
    plan = make_plan(uses_reference=False, **sizes)
    spec = replace(spec, num_layers=layers)
    if spec.moe is None:
        spec = replace(spec, tied_embeddings=sizes.get("tied", True))
    spec = replace(spec, num_parameters=count_parameters(spec))
    return replace(plan, model=replace(plan.model, spec=spec), train=replace(plan.train, **train))


def layout_of(plan: RunPlan) -> Layout:
    t, uneven = plan.train, len(set(plan.train.stage_layers)) > 1
    return Layout(
        spec=plan.model.spec,
        gpu="h100_80gb",
        weight_bytes={"float32": 4, "bfloat16": 2}[plan.model.dtype],
        colocated=True,
        tp=t.tp,
        pp=t.pp,
        cp=t.cp,
        dp=t.dp,
        ep=t.ep,
        max_tokens=64,
        micro_batch_size=None,
        recompute=False,
        sequence_parallel=t.sequence_parallel,
        distributed_optimizer=t.distributed_optimizer,
        reference=False,
        engine_tp=1,
        mem_fraction=0.5,
        max_total_tokens=None,
        sample_tokens=64,
        bucket_bytes=1,
        etp=t.etp,
        first_stage_layers=t.stage_layers[0] if uneven else None,
        last_stage_layers=t.stage_layers[-1] if uneven else None,
        gradient_bytes={"float32": 4, "bfloat16": 2}[t.grad_dtype],
    )


def compare(ranks, plan: RunPlan) -> None:
    m = layout_of(plan)
    results = ranks.run(world(plan), "held", plan)
    stages = state(m)
    for result in results:
        expected = stages[result["info"].pp]
        assert result["weights"] == expected["weights"]
        assert result["gradients"] == expected["gradients"]
        padding = (64 * result["tensors"] + 256 * result["buckets"]) * m.gradient_bytes
        assert expected["gradients"] <= result["gradient buffers"] <= expected["gradients"] + padding
        # A whole optimizer exactly; a shard up to where Megatron puts the cut.
        slack = 12 * (64 * result["tensors"] + 256 * result["buckets"]) if m.distributed_optimizer else 0
        assert abs(result["optimizer"] - expected["optimizer"]) <= slack
    for stage in range(m.pp):
        together = sum(r["optimizer"] for r in results if r["info"].pp == stage)
        each = m.master_bytes + 2 * m.moment_bytes
        replicas = [
            m.tp * m.cp * m.dp // ranks for ranks in m.shards
        ]  # of (non-expert, expert) state, among the stage's ranks
        assert together == each * sum(n * count for n, count in zip(replicas, m.parameters()[stage], strict=True))


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_rank_holds_the_bytes_of_the_plan(ranks, name):
    sizes, train = LAYOUTS[name]
    compare(ranks, planned(sizes, train))


@pytest.mark.parametrize("name", list(EXPERTS))
def test_a_rank_with_experts_holds_the_bytes_of_the_plan(ranks, name):
    sizes, train = EXPERTS[name]
    compare(ranks, planned({**sizes, "tied": False}, train, MOE))
