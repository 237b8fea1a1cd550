"""The CPU twin of every shipped experiment and family plans without a word, and says what it is."""

from __future__ import annotations

import pytest
import yaml

from rlrun.cli import main
from rlrun.config.load import load
from rlrun.config.shipped import shipped
from rlrun.families import FAMILIES
from rlrun.plan.build import load_plan, plan_from_json, plan_to_json, replan
from rlrun.plan.context import Context
from rlrun.plan.explain import explain
from rlrun.plan.limits import limits
from rlrun.plan.render import render_plan
from rlrun.plan.suggest import suggest_text

EXPERIMENTS = sorted(path.stem for path in (shipped("conf") / "experiment").glob("*.yaml"))
MODELS = sorted(path.stem for path in (shipped("conf") / "model").glob("*.yaml"))
BIG = "+experiment=qwen3_grpo"


def on_gpus(experiment: str) -> list[str]:
    words = [f"+experiment={experiment}"]
    plan = load_plan(words)
    if plan.device == "cuda":
        return words
    return [*words, "placement=train_8gpu" if plan.placement_mode == "train_only" else "placement=gpu_1"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_twin_of_every_shipped_experiment_plans_small_enough_for_a_laptop(experiment):
    plan = load_plan([*on_gpus(experiment), "+twin=cpu"])
    assert plan.device == "cpu"
    assert plan.twin == experiment
    assert len(plan.train.slots) <= 2
    assert len(plan.engines) <= 2
    assert plan.model.spec.num_parameters < 5_000_000
    assert plan.batch.samples_per_rollout <= 256
    assert plan.model.dtype == "float32"


@pytest.mark.parametrize("model", [model for model in MODELS if not model.startswith("tiny_")])
def test_the_twin_of_every_shipped_model_is_a_random_one_of_its_family(model):
    loaded = load([BIG, f"model={model}"])
    plan = load_plan([BIG, f"model={model}", "+twin=cpu"])
    assert plan.model.init == "random"
    assert plan.model.name == f"tiny_{plan.model.spec.family}"
    assert plan.model.spec.family == loaded.config.model.family
    assert limits(plan) == []


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_model_that_is_random_already_stays_as_it_is(family):
    """Trained and served on different slots, with the quickstart's data, which its alphabet spells."""
    words = ["+experiment=quickstart", f"model=tiny_{family}", "placement=split_8gpu"]
    plain, plan = load(words), load_plan([*words, "+twin=cpu"])
    assert plan.model.spec == Context(plain.config, plain.origins).spec
    assert (plan.placement_mode, plan.sync.transport, plan.device) == ("disaggregated", "distributed", "cpu")
    assert (plan.train.tp, plan.train.dp, len(plan.engines)) == (2, 1, 2)


def test_a_short_evaluation_file_of_ones_own_stays_whole(tmp_path):
    rows = tmp_path / "eval.jsonl"
    rows.write_text('{"prompt": "12", "label": "21"}\n' * 3)
    words = ["+experiment=quickstart", "placement=gpu_1", f"data.eval.path={rows}", "+twin=cpu"]
    plan = load_plan(words)
    assert plan.eval is not None
    assert (plan.eval.max_prompts, plan.eval.interval) == (None, 2)


def test_an_evaluated_experiment_is_evaluated_on_the_quickstarts_prompts(tmp_path):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    evaluated = {"data": {"eval": {"path": "${recipes:qwen3_grpo/train.jsonl}"}}, "eval": {"interval": 50}}
    file.write_text(EXPERIMENT.format(placement="gpu_8") + yaml.safe_dump(evaluated))
    plan = load_plan(["+experiment=mine", "+twin=cpu"], str(tmp_path))
    assert plan.eval is not None
    assert plan.data.eval is not None
    assert plan.data.eval.path.endswith("quickstart/eval.jsonl")
    assert (plan.eval.max_prompts, plan.eval.interval) == (16, 2)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["checkpoint.hf_interval=100"], (2, None)),
        (["checkpoint.hf_interval=100", "checkpoint.hf_keep=1", "checkpoint.keep_every=200"], (2, 2)),
        (["checkpoint.hf_interval=100", "num_steps=2"], (1, None)),
        (["checkpoint.hf_interval=100", "checkpoint.hf_keep=1", "num_steps=1"], (None, None)),
        (["checkpoint.keep_every=100", "checkpoint.interval=50"], (None, 2)),
    ],
)
def test_exports_come_before_the_last_step_and_what_is_kept_is_saved(tmp_path, words, found):
    """The words are those of the experiment, except for num_steps."""
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    own = {word.split(".")[1].split("=")[0]: int(word.split("=")[1]) for word in words if "." in word}
    file.write_text(EXPERIMENT.format(placement="gpu_8") + yaml.safe_dump({"num_steps": 1000, "checkpoint": own}))
    command = [word for word in words if "." not in word]
    plan = load_plan(["+experiment=mine", "+twin=cpu", *command], str(tmp_path))
    assert (plan.checkpoint.hf_interval, plan.checkpoint.keep_every) == found


def test_every_server_group_keeps_one_engine():
    plan = load_plan(["+experiment=qwen3_pd", "+twin=cpu"])
    assert [(group.type, len(group.slots)) for group in plan.deployment.groups] == [("regular", 1), ("regular", 1)]
    assert [engine.slots for engine in plan.engines] == [(2,), (3,)]
    assert plan.engines[1].max_running_requests == 256


EXPERIMENT = "# @package _global_\ndefaults:\n  - qwen3_grpo\n  - override /placement: {placement}\n  - _self_\n"
DEPLOYMENTS = {
    "train_8gpu": {"seed": 7},
    "split_8gpu": {"placement": {"rollout": {"pp": 2}}},
    "gpu_8": {
        "placement": {"mode": "rollout_only", "trainer": {"gpus": 8, "tp": 1}},
        "trainer": {"max_tokens_per_gpu": None, "recompute": "none"},
        "data": {"eval": {"path": "${recipes:qwen3_grpo/train.jsonl}"}},
        "checkpoint": {"interval": None},
        "eval": {"interval": 1},
    },
    "gpu_1": {
        "placement": {
            "mode": "disaggregated",
            "rollout": {"gpus": 8, "external": [{"url": "http://node7:30000"}]},
        },
        "rollout": {"sglang": {"mem_fraction_static": None}},
        "weight_sync": {"transport": "distributed"},
        "trainer": {"recompute": "full"},
    },
}


@pytest.mark.parametrize("placement", DEPLOYMENTS)
def test_the_twin_of_other_deployments_plans(placement, tmp_path):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(EXPERIMENT.format(placement=placement) + yaml.safe_dump(DEPLOYMENTS[placement]))
    words = ["+experiment=mine", "placement.gpu=h200_141gb"]
    plain = load_plan(words, str(tmp_path))
    twin = load_plan([words[0], "+twin=cpu"], str(tmp_path))
    assert (twin.device, twin.placement_mode) == ("cpu", plain.placement_mode)
    assert twin.deployment.external == ()
    assert bool(twin.engines) == (plain.placement_mode != "train_only")
    assert bool(twin.train.slots) == (plain.placement_mode != "rollout_only")
    assert all(engine.pp == 1 for engine in twin.engines)


JUDGED = {
    "rollout": {"models": {"judge": {"path": "Qwen/Qwen3-8B"}, "jury": {"path": "Qwen/Qwen3-4B"}}},
    "placement": {
        "rollout": {
            "server_groups": [{"type": "regular", "gpus": 2}, {"type": "regular", "gpus": 2, "model": "judge"}],
            "external": [{"url": "http://node7:30000", "model": "jury"}],
        }
    },
    "reward": {"function": "rlrun.agents.judges:graded"},
}


def test_frozen_models_are_left_out_with_the_reward_that_asks_for_them(tmp_path):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(EXPERIMENT.format(placement="split_8gpu") + yaml.safe_dump(JUDGED))
    words = ["+experiment=mine", "+twin=cpu"]
    twin = load_plan(words, str(tmp_path))
    assert twin.deployment.models == twin.deployment.external == ()
    assert [engine.model for engine in twin.engines] == ["policy"]
    kept = load_plan([*words, "reward.function=rlrun.agents.judges:graded"], str(tmp_path))
    assert [(m.name, m.engines) for m in kept.deployment.models] == [("judge", (1,)), ("jury", ())]
    assert [e.model for e in kept.deployment.external] == ["jury"]


def test_the_twins_plan_is_titled_and_shows_the_values_it_replaced():
    text = render_plan(load_plan([BIG, "+twin=cpu", "algo.lr=0.5"]))
    assert text.startswith("Plan: CPU twin of qwen3_grpo, 1 node x 2 slots on CPU")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if "   " in line}
    assert lines["num_steps"] == "100 -> 4 twin cpu, was 200"
    assert lines["placement.trainer.tp"] == "1 twin cpu, was 2"
    assert lines["algo.lr"] == "1e-06 -> 0.5 command line"


def test_a_twin_survives_json_and_is_resumed_as_one():
    plan = load_plan([BIG, "+twin=cpu"])
    assert plan_from_json(plan_to_json(plan)) == plan
    again = replan(plan, ["num_steps=5"])
    assert (again.twin, again.num_steps, again.config_hash != plan.config_hash) == ("qwen3_grpo", 5, True)
    assert replan(plan, []).config_hash == plan.config_hash


def test_explain_tells_the_rule_and_the_value_in_the_twin():
    assert "two ranks" in explain("twin", [])
    assert "twin cpu, was 2 " in explain("placement.trainer.tp", [BIG, "+twin=cpu"])


def test_suggest_diff_and_sweeps_understand_it(tmp_path, capsys):
    assert suggest_text([BIG, "+twin=cpu"]) == "A run on cpu has no memory gate."
    words = tmp_path / "twin.words"
    words.write_text("+experiment=qwen3_grpo +twin=cpu\n")
    assert main(["diff", "qwen3_grpo", f"@{words}"]) == 0
    assert "placement.device" in capsys.readouterr().out
    assert main(["plan", "-m", BIG, "+twin=cpu", "seed=1,2"]) == 0
    assert "Sweep of 2 points" in capsys.readouterr().out


def test_help_names_it(capsys):
    assert main(["--help"]) == 0
    assert "+twin=cpu" in capsys.readouterr().out
