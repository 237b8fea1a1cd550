from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.shipped import shipped
from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan, plan_from_json, plan_to_json, replan
from rlrun.plan.model_spec import make_spec
from rlrun.plan.render import render_plan

sys.path.insert(0, str(Path(__file__).parent))
from weights_on_disk import qwen3_shapes, write_safetensors

QUICK = "+experiment=quickstart"
BIG = "+experiment=qwen3_grpo"
EXPERIMENTS = sorted(p.stem for p in (shipped("conf") / "experiment").glob("*.yaml"))
WITHOUT_ENGINES = {"train_8gpu": 4, "cpu_train": 1}
"""Placements that only train -> data-parallel size. The quickstart generates, and says how."""
NOT_FOR_IT = {*WITHOUT_ENGINES, "flash_16", "glm_64", "glm_128", "minimax_64", "moe_8"}
"""Placements for experts and sizes that the quickstart's model does not have; their own experiments are planned."""
PLACEMENTS = sorted({p.stem for p in (shipped("conf") / "placement").glob("*.yaml")} - NOT_FOR_IT)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_plans(experiment):
    plan = load_plan([f"+experiment={experiment}"])
    assert plan.experiment == experiment
    assert plan.data.train.num_rows >= plan.batch.prompts_per_rollout


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_plans_with_the_quickstart(placement):
    plan = load_plan([QUICK, f"placement={placement}"])
    assert len(plan.train.slots) == plan.train.tp * plan.train.pp * plan.train.cp * plan.train.dp


def test_the_device_decides_what_is_left_to_it():
    cpu, cuda, split = load_plan([QUICK]), load_plan([BIG]), load_plan([BIG, "placement=split_8gpu"])
    assert (cpu.model.dtype, cpu.train.backend, cpu.sync.backend, cpu.engines[0].attention_backend) == (
        "float32",
        "gloo",
        "value",
        "torch_native",
    )
    assert (cuda.model.dtype, cuda.train.backend, cuda.sync.backend, cuda.engines[0].attention_backend) == (
        "bfloat16",
        "nccl",
        "cuda_ipc",
        "triton",
    )
    assert split.sync.backend == "nccl"
    assert load_plan([QUICK, "weight_sync.transport=distributed"]).sync.backend == "gloo"


@pytest.mark.parametrize(("transport", "there", "copies"), [("tensor", 0, 0), ("disk", 2, 0), ("delta", 1, 1)])
def test_what_travels_by_disk_has_a_folder_and_a_size(transport, there, copies, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sync = load_plan([QUICK, f"weight_sync.transport={transport}"]).sync
    size = 4 * 332_032
    assert (sync.total_bytes, sync.disk_bytes) == (size, there * size)
    assert (sync.host_bytes, sync.engine_bytes) == (copies * size, copies * size)
    assert sync.directory is None
    if there:
        placed = load_plan([QUICK, f"weight_sync.transport={transport}", "weight_sync.dir=shared"])
        assert placed.sync.backend == transport
        assert placed.sync.directory == str(tmp_path / "shared")
        assert placed.resolved_config["weight_sync"]["dir"] == str(tmp_path / "shared")
        assert "through shared (up to" in render_plan(placed)


@pytest.mark.parametrize("placement", WITHOUT_ENGINES)
def test_a_placement_without_engines_has_a_trainer_and_nothing_to_send_weights_to(placement):
    plan = load_plan([BIG, f"placement={placement}"])
    assert (plan.engines, plan.router, plan.sync, plan.deployment.groups) == ((), None, None, ())
    assert plan.train.dp == WITHOUT_ENGINES[placement]
    assert plan_from_json(plan_to_json(plan)) == plan


def test_a_placement_without_a_trainer_has_engines_only():
    words = ["trainer.max_tokens_per_gpu=null", "placement.trainer.gpus=8", "checkpoint.interval=null"]
    plan = load_plan([QUICK, "placement.mode=rollout_only", *words])
    assert (plan.train.slots, plan.train.dp, plan.sync) == ((), 0, None)
    assert [engine.slots for engine in plan.engines] == [(0,)]
    assert plan_from_json(plan_to_json(plan)) == plan


def test_server_groups_become_engines_in_the_order_of_their_slots():
    plan = load_plan(["+experiment=qwen3_pd", "rollout.port=29400"])
    assert [(e.type, e.group, e.slots, e.tp) for e in plan.engines] == [
        ("prefill", "policy-prefill", (4, 5), 2),
        ("decode", "policy-decode", (6,), 1),
        ("decode", "policy-decode", (7,), 1),
    ]
    assert [(e.port, e.bootstrap_port, e.dist_port) for e in plan.engines] == [
        (29400, 29401, 29402),
        (29403, None, 29404),
        (29405, None, 29406),
    ]
    assert plan.router is not None
    assert plan.router.port == 29407
    assert [e.max_running_requests for e in plan.engines] == [64, 256, 256]
    assert [g.engines for g in plan.deployment.groups] == [(0,), (1, 2)]
    assert plan_from_json(plan_to_json(plan)) == plan


def test_frozen_models_have_engines_and_a_router_of_their_own():
    groups = "[{type: regular, gpus: 2}, {type: regular, gpus: 2, model: judge}]"
    words = ["+experiment=qwen3_pd", "rollout.models={judge: {path: Qwen/Qwen3-8B, context_length: 32768}}"]
    words.append("reward.function=rlrun.agents.judges:graded")
    plan = load_plan([*words, f"placement.rollout.server_groups={groups}", "rollout.port=29400"])
    [judge] = plan.deployment.models
    assert (judge.path, judge.engines) == ("Qwen/Qwen3-8B", (2, 3))
    assert judge.router is not None
    assert [engine.context_length for engine in plan.engines] == [2568, 2568, 32768, 32768]
    assert plan.router is not None
    assert (plan.router.port, judge.router.port) == (29408, 29409)
    assert plan.config_hash != load_plan(["+experiment=qwen3_pd"]).config_hash, "a judge decides what is learned"


def test_reserved_gpus_are_skipped_by_slots_and_named_by_the_plan():
    reserved = "placement.reserved=[{node: 0, gpus: [3, 0], what: judge}]"
    plan = load_plan([BIG, "placement.trainer.gpus=6", "placement.rollout.gpus=6", reserved])
    assert [slot.gpu for slot in plan.slots] == [1, 2, 4, 5, 6, 7]
    assert plan.train.slots == (0, 1, 2, 3, 4, 5)
    assert plan.deployment.reserved[0].gpus == (0, 3)


def test_an_engine_over_several_nodes_names_them():
    words = [
        BIG,
        "placement=split_8gpu",
        "placement.num_nodes=3",
        "placement.trainer.gpus=8",
        "placement.rollout.gpus=16",
    ]
    plan = load_plan([*words, "placement.rollout.gpus_per_engine=16", "placement.rollout.pp=2"])
    [engine] = plan.engines
    assert (engine.nodes, engine.tp, engine.pp, len(engine.slots)) == ((1, 2), 8, 2, 16)


def test_a_split_placement_gives_each_side_its_own_gpus():
    plan = load_plan([BIG, "placement=split_8gpu"])
    assert plan.train.slots == (0, 1, 2, 3)
    assert [engine.slots for engine in plan.engines] == [(4, 5), (6, 7)]
    assert [engine.tp for engine in plan.engines] == [2, 2]
    assert (plan.train.tp, plan.train.dp) == (2, 2)
    assert plan.router is not None


def test_a_router_is_there_only_for_several_engines():
    assert load_plan([QUICK]).router is None
    assert load_plan([QUICK, "placement=cpu_dp2", "placement.rollout.gpus=2"]).router is not None


def test_ports_follow_each_other_when_the_first_is_given():
    plan = load_plan([QUICK, "placement=cpu_dp2", "placement.rollout.gpus=2", "rollout.port=28100"])
    assert [(e.port, e.dist_port) for e in plan.engines] == [(28100, 28101), (28102, 28103)]
    assert plan.router.port == 28104
    assert load_plan([QUICK]).engines[0].port is None


def test_batch_arithmetic():
    words = [BIG, "algo.groups_per_step=16", "placement.trainer.tp=1", "num_steps=10"]
    plan = load_plan([*words, "rollout.sglang.mem_fraction_static=0.4", "checkpoint.gather=host"])
    b = plan.batch
    assert (b.samples_per_rollout, b.samples_per_step, b.optimizer_steps_per_rollout, b.samples_per_rank) == (
        512,
        128,
        4,
        16,
    )
    assert plan.algo.optimizer.total_steps == 40


def test_weights_are_counted_once_in_the_type_they_travel_in():
    assert load_plan([BIG]).sync.total_bytes == 2 * 4_022_468_096
    plan = load_plan([QUICK])
    assert plan.sync.total_bytes == 4 * plan.model.spec.num_parameters


def test_a_reference_model_is_used_exactly_when_kl_counts():
    assert not load_plan([QUICK]).algo.uses_reference
    assert load_plan([QUICK, "algo.kl_coef=0.1", "algo.kl_estimator=k1"]).algo.uses_reference


def test_paths_are_absolute_and_relative_to_where_rlrun_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"prompt": "1", "label": 1}) + "\n" for _ in range(64)))
    plan = load_plan([QUICK, "data.train.path=d.jsonl", "output_dir=out"])
    assert plan.data.train.path == str(tmp_path / "d.jsonl")
    assert plan.output_dir == str(tmp_path / "out")
    assert plan.tracking.uri == f"sqlite:///{tmp_path}/out/mlflow.db"


def test_values_away_from_the_defaults_come_with_their_origin():
    changed = {c.key: c for c in load_plan([QUICK, "algo.clip_high=0.28"]).changed}
    assert (changed["algo.clip_high"].default, changed["algo.clip_high"].value) == (0.2, 0.28)
    assert changed["algo.clip_high"].origin == "command line"
    assert changed["placement.device"].origin.startswith("conf/placement/cpu_1.yaml:")
    assert "algo.clip_low" not in changed
    assert "model.name" not in changed, "it has no default to be away from"


WORDS = st.fixed_dictionaries(
    {},
    optional={
        "placement": st.sampled_from(PLACEMENTS),
        "algo.lr": st.floats(1e-9, 1.0),
        "algo.group_size": st.integers(2, 64),
        "algo.kl_coef": st.floats(0, 1),
        "rollout.stop": st.sampled_from(["[]", "['1']", "['0 1','2']"]),
        "reward.arguments": st.sampled_from(["{}"]),
        "tracking.enabled": st.booleans(),
        "checkpoint.interval": st.one_of(st.just("null"), st.integers(1, 9)),
        "data.system_prompt": st.sampled_from(["null", "'1 2'"]),
    },
)


@settings(max_examples=12, deadline=None)
@given(WORDS)
def test_a_plan_survives_json_exactly_and_planning_again_changes_nothing(choices):
    plan = load_plan([QUICK, *(f"{key}={value}" for key, value in choices.items())])
    assert plan_from_json(plan_to_json(plan)) == plan
    again = replan(plan, [])
    without = {"changed": (), "resolved_config": plan.resolved_config}
    assert dataclasses.replace(again, changed=()) == dataclasses.replace(plan, **without)


def test_planning_again_takes_new_values_and_names_the_stored_plan():
    plan = replan(load_plan([QUICK, "algo.lr=0.5"]), ["num_steps=77"], origin="runs/x/plan.json")
    assert plan.num_steps == 77
    assert plan.algo.optimizer.total_steps == 77 * plan.batch.optimizer_steps_per_rollout
    assert plan.experiment == "quickstart"
    changed = {c.key: c.origin for c in plan.changed}
    assert (changed["num_steps"], changed["algo.lr"]) == ("command line", "runs/x/plan.json")
    with pytest.raises(RlrunError) as e:
        replan(plan, ["num_step=3"], origin="runs/x/plan.json")
    assert [p.code for p in e.value.problems] == ["unknown-key"]


def test_planning_again_with_a_local_model_does_not_contradict_itself(tmp_path):
    """rope_theta was not written, so it came from config.json; the stored plan now says it."""
    config = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 32,
        "rope_theta": 5e6,
        "max_position_embeddings": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = make_spec("qwen3", {**config, "rms_norm_eps": 1e-6, "tie_word_embeddings": False})
    write_safetensors(tmp_path / "model.safetensors", qwen3_shapes(spec))
    (tmp_path / "tokenizer.json").write_text("{}")
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    )
    shape = ", ".join(f"{name}: {config[name]}" for name in names)
    model = f"{{name: m, family: qwen3, path: {tmp_path}, architecture: {{{shape}}}}}"
    words = [QUICK, "~model", f"model={model}"]
    plan = load_plan(words)
    assert plan.model.spec.rope_theta == 5e6
    assert replan(plan, []).config_hash == plan.config_hash


WITH_ARGUMENTS = [
    QUICK,
    "rollout.sglang.page_size=16",
    "rollout.sglang.gc_threshold=[700,10]",
    "+rollout.sglang.extra_metric_labels.run=first",
    "rollout.sglang.schedule_policy=fcfs",
    "trainer.megatron.bucket_size=1000000",
    "trainer.megatron.deterministic_mode=false",
]


def test_arguments_of_the_engines_are_decided_shown_and_kept():
    plan = load_plan(WITH_ARGUMENTS)
    assert dict(plan.engines[0].extra) == {
        "page_size": 16,
        "gc_threshold": [700, 10],
        "extra_metric_labels": {"run": "first"},
        "schedule_policy": "fcfs",
    }
    assert dict(plan.train.megatron) == {"bucket_size": 1_000_000, "deterministic_mode": False}
    shown = {c.key: (c.default, c.value, c.origin) for c in plan.changed}
    assert shown["rollout.sglang.page_size"] == (None, 16, "command line")
    assert shown["trainer.megatron.deterministic_mode"] == (True, False, "command line")
    assert "rollout.sglang.schedule_policy" not in shown  # as it is by itself
    assert plan_from_json(plan_to_json(plan)) == plan
    assert dataclasses.replace(replan(plan, []), changed=()) == dataclasses.replace(plan, changed=())


def test_an_argument_can_refer_to_another_key_and_come_from_a_file(tmp_path, monkeypatch):
    folder = tmp_path / "my_conf" / "experiment"
    folder.mkdir(parents=True)
    lines = [
        "# @package _global_",
        "defaults:",
        "  - /experiment/quickstart",
        "  - _self_",
        "rollout:",
        "  sglang:",
        "    max_queued_requests: ${algo.group_size}",
        "    --page-size: 4",
    ]
    (folder / "mine.yaml").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RlrunError) as e:
        load_plan(["+experiment=mine"], "my_conf")
    [problem] = e.value.problems
    assert (problem.code, problem.where[0].origin) == ("unknown-key", "my_conf/experiment/mine.yaml:8")
    assert problem.hint == "names are written with `_`: set rollout.sglang.page_size"
    (folder / "mine.yaml").write_text("\n".join(lines[:-1]) + "\n")
    plan = load_plan(["+experiment=mine"], "my_conf")
    assert plan.engines[0].extra == (("max_queued_requests", plan.batch.group_size),)
    assert "my_conf/experiment/mine.yaml:7" in [c.origin for c in plan.changed]


def test_auto_kernels_of_a_delta_net_are_decided_where_the_plan_can_tell():
    """fla or torch depends on what is installed on the trainer's nodes; on a CPU or in float32 it is torch."""
    tiny = ["+experiment=quickstart", "model=tiny_qwen3_5"]
    gpu = [*tiny, "placement=gpu_1"]
    assert load_plan(tiny).train.gdn_backend == "torch"
    assert load_plan(gpu).train.gdn_backend == "auto"
    assert load_plan([*gpu, "model.dtype=float32"]).train.gdn_backend == "torch"
    assert load_plan([*gpu, "model.gdn_backend=fla"]).train.gdn_backend == "fla"
