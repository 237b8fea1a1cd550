"""Groups of equal rewards are dropped with the real engines; what is left over outlives a stop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import SMALL, metrics, run, summary

from rlrun.data.storage import load_groups

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

FILTERED = [
    *SMALL,
    "num_steps=4",
    "dynamic_sampling.filter=drop_zero_variance",
    "dynamic_sampling.over_sampling=2",
    "dynamic_sampling.surplus=buffer",
    "dynamic_sampling.max_refills=20",
    "algo.loss_aggregation=rollout_mean",
    "tracking.enabled=false",
    "checkpoint.hf_at_end=false",
]


def test_a_filtered_run_goes_on_with_the_groups_that_waited(tmp_path):
    stopped = run([*FILTERED, "stop_after=2", f"output_dir={tmp_path}"], tmp_path)
    assert stopped.process.returncode == 0, stopped.text[-3000:]
    run_dir = stopped.run_dir()
    waited = int(metrics(run_dir)[-1]["rollout/groups_buffered"])
    file = run_dir / "checkpoints" / "step_000002" / "buffer.npz"
    assert len(load_groups(str(file)) if file.exists() else []) == waited

    resumed = run(["resume", str(run_dir)], tmp_path, log_name="resumed.log")
    assert resumed.process.returncode == 0, resumed.text[-3000:]
    assert summary(resumed)["steps"] == 4
    rows = metrics(run_dir)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["rollout/zero_variance_groups"] == 0
        assert row["rollout/samples"] == 32
        assert row["train/grad_norm"] > 0
        assert row["rollout/staleness_max"] <= 1
    assert sum(row["rollout/dropped_zero_variance"] for row in rows) > 0
