"""Supervised fine-tuning in the plan: a trainer alone, rows instead of samples, and what it says of them."""

from __future__ import annotations

import json

import pytest

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan, plan_from_json, plan_to_json
from rlrun.plan.limits import limits
from rlrun.plan.render import render_plan
from rlrun.runtime.preflight import check_machine

SFT = "+experiment=quickstart_sft"
PLAN = load_plan([SFT])


def test_there_is_a_trainer_and_nothing_else():
    assert (PLAN.engines, PLAN.router, PLAN.sync, PLAN.eval, PLAN.reward, PLAN.critic) == (
        (),
        None,
        None,
        None,
        None,
        None,
    )
    assert (PLAN.train.slots, PLAN.placement_mode) == ((0,), "train_only")
    assert PLAN.algo.supervised
    assert not PLAN.algo.uses_reference
    assert PLAN.algo.old_logprobs == "current"
    assert (PLAN.data.train.response_key, PLAN.data.train.label_key) == ("response", None)
    assert (PLAN.batch.group_size, PLAN.batch.optimizer_steps_per_rollout) == (1, 2)
    assert not load_plan(["+experiment=quickstart"]).algo.supervised


def test_it_survives_json():
    assert plan_from_json(plan_to_json(PLAN)) == PLAN


def test_it_is_told_in_rows_and_without_samples():
    text = render_plan(PLAN)
    assert "32 rows, 2 optimizer steps of 16" in text
    assert "sft: negative log-likelihood of the responses, token_mean" in text
    assert "supervised, train_only" in text
    assert "64 rows, responses in `response`" in text
    for word in ("temperature", "reward", " clip ", "advantage", "not yet"):
        assert word not in text, word
    assert "entropy bonus 0.1" in render_plan(load_plan([SFT, "algo.entropy_coef=0.1"]))


def test_it_runs_where_the_same_placement_with_another_loss_does_not(monkeypatch):
    monkeypatch.setattr("rlrun.runtime.preflight._installed", lambda package: package != "sglang")
    assert limits(PLAN) == []
    check_machine(PLAN)  # without SGLang too
    [limit] = limits(load_plan(["+experiment=qwen3_grpo", "placement=train_8gpu"]))
    assert limit.code == "mode-not-runnable"
    assert "train_only placement with loss ppo_clip" in limit.what
    with pytest.raises(RlrunError, match="engines-not-installed"):
        check_machine(load_plan(["+experiment=quickstart"]))


def test_one_row_of_a_preset_on_another_experiment_names_all_that_is_missing():
    with pytest.raises(RlrunError) as e:
        load_plan(["+experiment=quickstart", "algo=sft"])
    hints = {p.code: p.hint for p in e.value.problems}
    assert hints["sft-needs-train-only"].startswith("set placement.mode to train_only; placement=cpu_train ")
    assert hints["sft-group-size"] == "set algo.group_size to 1"
    assert hints["missing-value"].startswith("set data.train.response_key to the field ")
    assert hints["inactive-key"] == "set reward to null"


def test_the_responses_are_part_of_what_is_learned(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i}", "response": "1", "other": "2"}) + "\n" for i in range(32)))
    words = [SFT, f"data.train.path={rows}"]
    one, other = load_plan(words), load_plan([*words, "data.train.response_key=other"])
    assert one.config_hash != other.config_hash
    assert load_plan([*words, "placement.trainer_threads=2"]).config_hash == one.config_hash


def test_the_twin_of_an_sft_run_shows_the_quickstarts_responses(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"q": f"{i}", "a": "1"}) + "\n" for i in range(64)))
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package _global_\ndefaults:\n  - quickstart_sft\n  - override /placement: train_8gpu\n"
        f"  - override /model: qwen3_0_6b\n  - _self_\n"
        f"data: {{train: {{path: {rows}, response_key: a, prompt_key: q}}}}\n"
    )
    plan = load_plan(["+experiment=mine"], str(tmp_path))
    twin = load_plan(["+experiment=mine", "+twin=cpu"], str(tmp_path))
    assert (plan.train.tp, plan.train.dp, twin.device, twin.placement_mode) == (2, 4, "cpu", "train_only")
    assert twin.data.train.path.endswith("quickstart/sft.jsonl")
    assert (twin.data.train.prompt_key, twin.data.train.response_key, twin.reward) == ("prompt", "response", None)
    assert limits(twin) == []
