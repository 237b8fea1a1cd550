"""PPO as a user starts it: policy and critic in the same trainer process, SGLang generating, all on CPU; and a run that
goes on from a checkpoint ends where the one that never stopped did."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import SMALL, assert_nothing_left, metrics, run

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

STEPS, HALF = 4, 2
ARGS = [
    *SMALL,
    "algo=ppo",
    "critic.critic_only_steps=1",
    "algo.kl_reward_coef=0.01",
    f"num_steps={STEPS}",
    f"checkpoint.interval={HALF}",
    "tracking.enabled=false",
]
TURNS = ["trainer.offload", "rollout.offload"]
TIMED = ("perf/", "memory/")


def digest(run_dir, step):
    return json.loads((run_dir / "checkpoints" / f"step_{step:06d}" / "digest.json").read_text())


def learned(run_dir):
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in metrics(run_dir)]


def test_ppo_runs_on_the_policys_slots_and_resumes_bit_for_bit(tmp_path):
    """Trainer and engine take turns with everything they hold, also for the canary; the resumed run stays where it is,
    and computes the same."""
    turns = [f"{key}=true" for key in TURNS]
    whole = run([*ARGS, *turns, "weight_sync.verify=canary", f"output_dir={tmp_path}"], tmp_path, deadline_s=400)
    assert whole.process.returncode == 0, whole.text[-3000:]
    assert_nothing_left(whole)
    assert "critic starts from the policy's weights; its value head is new" in whole.text
    run_dir = whole.run_dir()
    plan = json.loads((run_dir / "plan.json").read_text())
    assert len(plan["train"]["slots"]) == len(plan["slots"]) == 1
    rows = metrics(run_dir)
    assert ["train/loss" in row for row in rows] == [False, True, True, True]
    for row in rows:
        assert row["train/value_loss"] > 0
        assert row["train/critic_grad_norm"] > 0
        assert row["perf/values_s"] > 0
        assert row["perf/critic_s"] > 0
        assert row["perf/offload_s"] > 0
        assert row["memory/host_parked_gib"] > 0
        assert row["sync/canary_abs_diff_max"] < 1e-4
    assert max(row.get("train/train_rollout_logprob_abs_diff_max", 0.0) for row in rows) < 1e-4
    (at_half,), (at_end,) = digest(run_dir, HALF), digest(run_dir, STEPS)
    for part in ("weights", "optimizer", "critic_weights", "critic_optimizer"):
        assert at_half[part] != at_end[part], part

    expected = learned(run_dir)
    shutil.rmtree(run_dir / "checkpoints" / f"step_{STEPS:06d}")  # as if it had been killed after half of its steps
    resumed = run(
        ["resume", str(run_dir), *(f"{key}=false" for key in TURNS)], tmp_path, deadline_s=400, log_name="resumed.log"
    )
    assert resumed.process.returncode == 0, resumed.text[-3000:]
    assert f"restored step {HALF}" in resumed.text
    assert digest(run_dir, STEPS) == [at_end]
    assert learned(run_dir) == expected
