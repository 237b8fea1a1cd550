"""The CPU twin of an experiment that is made for GPUs runs, with the real engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import assert_nothing_left, metrics, run, summary

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


def test_the_twin_of_an_experiment_for_eight_gpus_trains_and_keeps_its_engines_in_step(tmp_path):
    words = ["+experiment=qwen3_grpo", "+twin=cpu", "num_steps=2", "weight_sync.verify=canary"]
    command = run([*words, f"output_dir={tmp_path}"], tmp_path, deadline_s=420)
    assert command.process.returncode == 0, command.text[-3000:]
    run_dir = command.run_dir()
    assert run_dir is not None
    assert json.loads((run_dir / "plan.json").read_text())["twin"] == "qwen3_grpo"
    rows = metrics(run_dir)
    assert {row["step"] for row in rows if "train/loss" in row} == {1, 2}
    differences = [row["train/train_rollout_logprob_abs_diff_max"] for row in rows if "train/loss" in row]
    assert max(differences) < 1e-4
    assert summary(command)
    assert_nothing_left(command)
