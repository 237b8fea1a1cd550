"""Runs whose weights travel by disk, as a user starts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import SMALL, assert_nothing_left, metrics, run, summary

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

PARITY = 1e-4


@pytest.mark.parametrize("transport", ["disk", "delta"])
def test_engines_sample_from_the_trainers_weights_and_no_file_stays(transport, tmp_path):
    shared = tmp_path / "shared"
    words = [f"weight_sync.transport={transport}", f"weight_sync.dir={shared}", "weight_sync.verify=canary"]
    command = run([*SMALL, "num_steps=3", f"output_dir={tmp_path / 'runs'}", *words], tmp_path / "runs")
    assert command.process.returncode == 0, command.text[-3000:]
    assert summary(command)["steps"] == 3
    rows = metrics(command.run_dir())
    assert 0 < max(row["train/train_rollout_logprob_abs_diff_max"] for row in rows) < PARITY
    assert 0 < max(row["sync/canary_abs_diff_max"] for row in rows) < PARITY
    if transport == "delta":
        # Every step of a float32 model changes nearly every weight; each engine needed all of them once, at the start.
        assert [row["sync/full_updates"] for row in rows] == [0.0] * 3
    assert not [path for path in shared.rglob("*") if path.is_file()]
    assert_nothing_left(command)
