"""What can be planned and not yet run is said by the plan, and refused before anything starts."""

from __future__ import annotations

import json

import pytest

from rlrun.errors import RlrunError
from rlrun.families import FAMILIES, hf_config
from rlrun.plan.build import load_plan
from rlrun.plan.limits import limits
from rlrun.plan.render import render_plan
from rlrun.runtime.preflight import check_machine

ON_CPU = ["+experiment=qwen3_grpo", "placement=cpu_1", "rollout.max_response_tokens=1536"]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_runs(family, monkeypatch):
    monkeypatch.setattr("rlrun.runtime.preflight._installed", lambda package: True)
    plan = load_plan(["+experiment=quickstart", f"model=tiny_{family}"])
    assert plan.model.spec.family == family
    check_machine(plan)


def test_an_fp8_checkpoint_is_for_the_trainer_alone(tmp_path):
    """Engines would load FP8 and be sent weights of another type."""
    spec = load_plan(["+experiment=quickstart"]).model.spec
    config = hf_config(spec) | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ["model.init=pretrained", "model.alphabet=null", f"model.path={tmp_path}"]
    codes = [limit.code for limit in limits(load_plan(["+experiment=quickstart", *model]))]
    assert codes == ["weights-not-here", "quantised-not-runnable"]
    assert [limit.code for limit in limits(load_plan(["+experiment=quickstart_sft", *model]))] == ["weights-not-here"]


NODES = ["+experiment=qwen3_grpo", "placement.num_nodes=8", "placement.trainer.gpus=64", "placement.rollout.gpus=64"]


def test_a_colocated_run_over_nodes_can_be_planned_and_says_that_it_cannot_run():
    plan = load_plan(NODES)
    assert len(plan.engines) == 64
    assert {slot.node for slot in plan.slots} == set(range(8))
    [limit] = limits(plan)
    assert limit.code == "colocated-nodes-not-runnable"
    assert "engines 8 to 63 on other nodes than trainer rank 0" in limit.what


def test_an_engine_needs_a_trainer_rank_on_its_node_only():
    assert not limits(
        load_plan(
            ["+experiment=qwen3_grpo", "placement.trainer.gpus=4", "placement.rollout.gpus=8", "checkpoint.gather=host"]
        )
    )


JUDGE = [
    "rollout.models={judge: {path: Qwen/Qwen3-8B}}",
    "placement.rollout.server_groups=[{type: regular, gpus: 2}, {type: regular, gpus: 2, model: judge}]",
    "reward.function=rlrun.agents.judges:graded",
]
SPLIT = ["+experiment=qwen3_grpo", "placement=split_8gpu"]


EXTERNAL = [
    "+experiment=qwen3_grpo",
    "placement=train_8gpu",
    "placement.mode=disaggregated",
    "weight_sync.transport=distributed",
    "placement.rollout.external=[{url: 'http://node7:30000'}]",
]
TWO_NODES = [
    *SPLIT,
    "placement.num_nodes=3",
    "placement.trainer.gpus=8",
    "placement.rollout.gpus=16",
    "placement.rollout.gpus_per_engine=16",
]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("mode-not-runnable", ["+experiment=qwen3_grpo", "placement=train_8gpu"]),
        ("server-groups-not-runnable", ["+experiment=qwen3_pd"]),
        ("engine-nodes-not-runnable", TWO_NODES),
        ("optimizer-offload-not-runnable", ["+experiment=qwen3_grpo", "trainer.optimizer_offload=true"]),
        ("optimizer-dtype-not-runnable", ["+experiment=qwen3_grpo", "trainer.optimizer_dtype=bfloat16"]),
        ("engine-parallel-not-runnable", [*SPLIT, "placement.rollout.pp=2"]),
        ("engine-parallel-not-runnable", [*SPLIT, "placement.rollout.dp_attention=2"]),
    ],
)
def test_what_can_only_be_planned_says_so_alone(code, words):
    found = limits(load_plan(words))
    assert [limit.code for limit in found] == [code]
    assert found[0].hint


def test_frozen_models_and_external_servers_run():
    assert limits(load_plan(["+experiment=qwen3_pd", *JUDGE])) == []
    assert limits(load_plan(EXTERNAL)) == []


def test_a_frozen_model_without_weights_is_for_planning_alone(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    [limit] = limits(load_plan(["+experiment=qwen3_pd", *JUDGE, f"rollout.models.judge.path={tmp_path}"]))
    assert limit.code == "weights-not-here"
    assert "rollout.models.judge.path" in limit.hint


def test_several_regular_groups_and_placeholders_run():
    groups = "[{type: regular, gpus: 2, gpus_per_engine: 2}, {type: placeholder, gpus: 1}, {type: regular, gpus: 1}]"
    plan = load_plan(["+experiment=qwen3_pd", f"placement.rollout.server_groups={groups}"])
    assert limits(plan) == []
    assert [(e.slots, e.tp) for e in plan.engines] == [((4, 5), 2), ((7,), 1)]


@pytest.mark.parametrize("mode", ["one_step", "fully_async"])
def test_an_asynchronous_run_is_planned_and_refused_before_anything_starts(mode):
    plan = load_plan(["+experiment=qwen3_grpo", "placement=split_8gpu", f"async_mode={mode}"])
    assert f"run       not yet: async_mode {mode} " in render_plan(plan)
    with pytest.raises(RlrunError) as e:
        check_machine(plan)
    assert "async-not-runnable" in [p.code for p in e.value.problems]


EXPERTS = ["+experiment=qwen3_30b_a3b_grpo", "placement.host_memory_gib=null", "placement.gpu=h200_141gb"]


def test_experts_whole_on_several_tensor_parallel_ranks_are_planned_only():
    words = ["placement.trainer.ep=1", "placement.trainer.tp=2", "placement.trainer.pp=2"]
    assert "ep-not-runnable" in [limit.code for limit in limits(load_plan([*EXPERTS, *words]))]


def test_experts_shared_out_run():
    plan = load_plan([*EXPERTS, "placement.trainer.ep=8"])
    assert plan.train.ep == 8
    assert "ep-not-runnable" not in [limit.code for limit in limits(plan)]


def test_context_parallel_ranks_run():
    plan = load_plan(["+experiment=qwen3_grpo", "placement.trainer.cp=2", "trainer.max_tokens_per_gpu=8192"])
    assert (plan.train.cp, plan.train.dp) == (2, 2)
    assert limits(plan) == []


def test_gradients_in_bfloat16_uneven_stages_and_gathering_on_the_host_run():
    words = ["trainer.grad_dtype=bfloat16", "checkpoint.gather=host", "placement.trainer.pp=2"]
    plan = load_plan(["+experiment=qwen3_grpo", *words, "placement.trainer.first_stage_layers=16"])
    assert plan.train.stage_layers == (16, 20)
    assert limits(plan) == []
