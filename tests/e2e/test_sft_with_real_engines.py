"""Supervised fine-tuning as a user starts it, on CPU: its loss falls, it goes on from a checkpoint bit for bit, and
reinforcement learning can be planned from the weights that it leaves."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import assert_nothing_left, metrics, run, summary

from rlrun.data.tiny_model import EOS_ID
from rlrun.plan.build import load_plan
from rlrun.tracking.metrics import METRICS

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

STEPS, HALF = 6, 3
ARGS = ["+experiment=quickstart_sft", f"num_steps={STEPS}", f"checkpoint.interval={HALF}", "checkpoint.digest=true"]


def digest(run_dir, step):
    return json.loads((run_dir / "checkpoints" / f"step_{step:06d}" / "digest.json").read_text())


def learned(run_dir):
    return [{k: v for k, v in row.items() if not k.startswith(("perf/", "memory/"))} for row in metrics(run_dir)]


def test_sft_learns_resumes_bit_for_bit_and_is_where_reinforcement_learning_starts(tmp_path):
    whole = run([*ARGS, f"output_dir={tmp_path}"], tmp_path)
    assert whole.process.returncode == 0, whole.text[-3000:]
    assert_nothing_left(whole)
    run_dir = whole.run_dir()
    rows = metrics(run_dir)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows[-1]["train/loss"] < 0.75 * rows[0]["train/loss"]
    assert set().union(*rows) - {"step"} <= set(METRICS)
    assert "SGLang" not in whole.text
    assert "reward" not in whole.text.split("Next")[0]
    found = summary(whole)
    assert (found["status"], found["first_reward_mean"]) == ("finished", None)
    assert found["last_loss_mean"] < found["first_loss_mean"]

    expected = learned(run_dir)
    at_end = digest(run_dir, STEPS)
    shutil.rmtree(run_dir / "checkpoints" / f"step_{STEPS:06d}")  # as if it had been killed after half of its steps
    shutil.rmtree(run_dir / "hf")
    resumed = run(["resume", str(run_dir)], tmp_path, log_name="resumed.log")
    assert resumed.process.returncode == 0, resumed.text[-3000:]
    assert digest(run_dir, STEPS) == at_end != digest(run_dir, HALF)
    assert learned(run_dir) == expected

    from_here = ["model.init=pretrained", "model.alphabet=null", f"model.path={run_dir / 'hf'}"]
    plan = load_plan(["+experiment=quickstart", *from_here])
    assert (plan.model.init, plan.model.path) == ("pretrained", str(run_dir / "hf"))
    assert json.loads((run_dir / "hf" / "generation_config.json").read_text())["eos_token_id"] == EOS_ID
    assert plan.model.spec == load_plan(["+experiment=quickstart"]).model.spec
