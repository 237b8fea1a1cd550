"""Trackers: what is written is what can be read back, and names are documented."""

from __future__ import annotations

import json

import pytest

from rlrun.tracking.base import JsonlTracker, Trackers
from rlrun.tracking.metrics import METRICS


def read(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def test_jsonl_tracker_writes_one_object_a_step(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    tracker = JsonlTracker(path)
    tracker.log(1, {"train/loss": 0.5})
    tracker.log(2, {"train/loss": 0.25})
    tracker.close("FINISHED")
    assert read(path) == [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": 0.25}]


def test_a_resumed_jsonl_drops_the_lines_after_the_restored_step(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    tracker = JsonlTracker(path)
    for step in (1, 2, 3):
        tracker.log(step, {"train/loss": float(step)})
    tracker.close("KILLED")
    tracker = JsonlTracker(path, resume_step=2)
    tracker.log(3, {"train/loss": 30.0})
    tracker.close("FINISHED")
    assert [row["train/loss"] for row in read(path)] == [1.0, 2.0, 30.0]


def test_an_undocumented_metric_name_is_refused():
    with pytest.raises(AssertionError, match="train/losss"):
        Trackers([]).log(1, {"train/losss": 1.0})


def test_every_metric_has_a_description_and_a_section():
    for name, text in METRICS.items():
        assert name.split("/")[0] in {"rollout", "train", "perf", "sync", "eval", "memory", "fleet"}
        assert "@" not in name, "MLflow refuses @"
        assert len(text) > 10
