"""Checkpoints appear whole or not at all, and old ones go."""

from __future__ import annotations

import os

import pytest

from rlrun.runtime.checkpoint import CheckpointStore, RunState


def state(step):
    return RunState(
        step=step,
        policy_version=step,
        optimizer_steps=4 * step,
        source={"epoch": 0},
        config_hash="h",
        mlflow_run_id="m",
    )


class Saver:
    def save(self, directory):
        with open(os.path.join(directory, "weights"), "w") as f:
            f.write("w")


class Breaks(Saver):
    def save(self, directory):
        super().save(directory)
        raise OSError("disk full")


def test_a_saved_state_comes_back_equal(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=2)
    path = store.save(state(3), Saver())
    assert store.latest() == (path, state(3))
    assert os.path.exists(os.path.join(path, "megatron", "weights"))


def test_only_the_newest_are_kept_in_numeric_order(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=2)
    for step in (5, 999_999, 1_000_000):
        store.save(state(step), Saver())
    assert store.steps() == [999_999, 1_000_000]


def test_a_save_that_breaks_leaves_the_previous_checkpoint_as_the_latest(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=2)
    good = store.save(state(1), Saver())
    with pytest.raises(OSError, match="disk full"):
        store.save(state(2), Breaks())
    assert store.latest() == (good, state(1))
    store.save(state(2), Saver())
    assert store.steps() == [1, 2]


def test_an_empty_run_folder_has_no_checkpoint(tmp_path):
    assert CheckpointStore(str(tmp_path), keep=2).latest() is None
