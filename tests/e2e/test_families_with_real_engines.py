"""The loop with a model of another family, as a user starts it: Megatron and SGLang agree on every sampled token, step
after step, which they only do when every weight sync has changed everything that an engine computes with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import SMALL, assert_nothing_left, metrics, run, summary

from rlrun.plan.build import load_plan
from rlrun.runtime.preflight import check_machine

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

STEPS = 10
AGREE = 1e-3
"""Largest difference of any sampled token's log-prob, float32."""


@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_5_moe"])
def test_ten_steps_of_a_family_with_the_real_engines(family, tmp_path):
    words = [*SMALL, f"model=tiny_{family}", f"num_steps={STEPS}", "checkpoint.digest=false", f"output_dir={tmp_path}"]
    command = run(words, tmp_path)
    assert command.process.returncode == 0, command.text[-3000:]
    assert_nothing_left(command)
    rows = [row for row in metrics(command.run_dir()) if "train/loss" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    worst = {row["step"]: row["train/train_rollout_logprob_abs_diff_max"] for row in rows}
    assert max(worst.values()) < AGREE, f"largest difference of each step: {worst}"
    assert any(row["train/grad_norm"] > 0 for row in rows)
    # The weights it leaves are a checkpoint of the family, which plans and would run.
    left = summary(command)["hf_checkpoint"]
    again = ["model.init=pretrained", f"model.path={left}", "model.alphabet=null"]
    plan = load_plan(["+experiment=quickstart", f"model=tiny_{family}", *again])
    assert plan.model.spec.family == family
    check_machine(plan)
