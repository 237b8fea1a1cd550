"""Checkpoints appear whole or not at all, old ones go, and what a crash leaves is nobody's checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data.folders import put
from rlrun.plan.types import CheckpointPlan
from rlrun.runtime.checkpoint import CheckpointStore, RunState
from rlrun.runtime.shelf import Shelf


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
    """A trainer whose state is `weights`."""

    weights = "w"

    def save(self, directory):
        self.begin_save(directory)
        self.finish_save()

    def begin_save(self, directory):
        self._copied = directory, self.weights

    def save_done(self):
        return True

    def finish_save(self):
        directory, weights = self._copied
        self.export_hf(directory, weights)
        return 1.5

    def export_hf(self, directory, weights=None):
        with open(os.path.join(directory, "weights"), "w") as f:
            f.write(weights or self.weights)

    def digest(self):
        return [{"weights": self.weights}]


class Breaks(Saver):
    def finish_save(self):
        super().finish_save()
        raise OSError("disk full")


class Killed(BaseException):
    """The process ends here."""


def kills(*_, **__):
    raise Killed


def names(folder):
    return sorted(os.listdir(folder))


def test_a_saved_state_comes_back_equal(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=2)
    path = store.save(state(3), Saver())
    assert store.latest() == (path, state(3))
    assert os.path.exists(os.path.join(path, "megatron", "weights"))
    assert store.damage(3) == []


def test_only_the_newest_are_kept_in_numeric_order(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=2)
    for step in (5, 999_999, 1_000_000):
        store.save(state(step), Saver())
    assert store.steps() == [999_999, 1_000_000]
    assert names(store.shelf.directory) == ["step_1000000", "step_999999"]


@given(
    steps=st.sets(st.integers(1, 40), min_size=1, max_size=12).map(sorted),
    keep=st.integers(1, 4),
    keep_every=st.none() | st.integers(1, 9),
)
def test_the_newest_stay_and_those_of_every_so_many_steps(tmp_path_factory, steps, keep, keep_every):
    shelf = Shelf(str(tmp_path_factory.mktemp("shelf")), keep, keep_every)
    for step in steps:
        assert shelf.put(shelf.make(step), step) == shelf.path(step)
        assert shelf.steps()[-1] == step
    good = {s for s in steps if keep_every is not None and s % keep_every == 0}
    assert shelf.steps() == sorted({*steps[-keep:], *good})
    assert len(names(shelf.directory)) == len(shelf.steps())


def test_without_a_number_all_stay(tmp_path):
    shelf = Shelf(str(tmp_path), None)
    for step in range(1, 6):
        shelf.put(shelf.make(step), step)
    assert shelf.steps() == [1, 2, 3, 4, 5]


def test_a_save_that_breaks_leaves_the_previous_checkpoint_as_the_latest(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=1)
    good = store.save(state(1), Saver())
    with pytest.raises(OSError, match="disk full"):
        store.save(state(2), Breaks())
    assert store.latest() == (good, state(1))
    store.save(state(2), Saver())
    assert store.steps() == [2]


def test_the_checkpoint_before_stays_until_the_next_one_is_complete(tmp_path):
    store, trainer = CheckpointStore(str(tmp_path), keep=1, digest=True), Saver()
    first = store.save(state(1), trainer)
    store.begin(state(2), trainer)
    trainer.weights = "trained on"
    assert (store.pending, store.latest()) == (True, (first, state(1)))
    assert store.finish(trainer) == (store.path(2), 1.5)
    assert (store.pending, store.latest()) == (False, (store.path(2), state(2)))
    assert store.steps() == [2]
    assert Path(store.path(2), "megatron", "weights").read_text() == "w"
    assert '"w"' in Path(store.path(2), "digest.json").read_text()


def test_a_save_that_breaks_beside_training_is_forgotten(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=1)
    store.save(state(1), Saver())
    store.begin(state(2), broken := Breaks())
    with pytest.raises(OSError, match="disk full"):
        store.finish(broken)
    assert (store.pending, store.steps()) == (False, [1])


@pytest.mark.parametrize("when", ["write", "rename", "delete"])
def test_killed_at_any_moment_of_a_save_there_is_a_whole_checkpoint_and_the_rest_goes(tmp_path, monkeypatch, when):
    store = CheckpointStore(str(tmp_path), keep=1)
    store.save(state(1), Saver())
    place = {"write": (Saver, "finish_save"), "rename": (os, "rename"), "delete": (shutil, "rmtree")}[when]
    with monkeypatch.context() as patch:
        patch.setattr(*place, kills)
        with pytest.raises(Killed):
            store.save(state(2), Saver())
    again = CheckpointStore(str(tmp_path), keep=1)
    newest = 2 if when == "delete" else 1
    assert again.latest() == (again.path(newest), state(newest))
    assert again.damage(newest) == []
    assert len(names(again.shelf.directory)) == 2, "nothing was left half done"
    again.clean()
    assert names(again.shelf.directory) == [f"step_{newest:06d}"]


def test_cleaning_leaves_everything_else_alone(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=1)
    store.save(state(1), Saver())
    others = [".hidden", "step_000002.damaged", "notes.tmp"]
    for other in others:
        os.makedirs(os.path.join(store.shelf.directory, other))
    debris = [store.shelf.make(2), store.hf.make(3)]
    os.makedirs(tmp_path / ".hf.0123abcd.tmp")
    store.clean()
    assert names(store.shelf.directory) == sorted([*others, "step_000001"])
    assert not any(map(os.path.exists, [*debris, tmp_path / ".hf.0123abcd.tmp"]))


def test_what_a_killed_run_still_writes_is_not_in_the_way_of_the_next(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=1)
    orphan = store.shelf.make(2)
    again = CheckpointStore(str(tmp_path), keep=1)
    again.begin(state(2), trainer := Saver())
    Path(orphan, "late").write_text("")
    again.finish(trainer)
    assert names(again.path(2)) == ["files.json", "megatron", "state.json"]


def test_later_steps_of_an_abandoned_branch_do_not_push_out_what_was_just_saved(tmp_path):
    """After going back to step 10, exports of steps 15 and 20 are there, and 12 comes."""
    shelf = Shelf(str(tmp_path), 2)
    for step in (10, 15, 20, 12, 14):
        shelf.put(shelf.make(step), step)
    assert shelf.steps() == [12, 14, 15, 20]


def test_a_folder_takes_the_place_of_one_of_the_same_name(tmp_path):
    for text in ("old", "new"):
        made = tmp_path / f".{text}.tmp"
        made.mkdir()
        (made / text).write_text(text)
        put(str(made), str(tmp_path / "hf"))
    assert (names(tmp_path), names(tmp_path / "hf")) == (["hf"], ["new"])


def test_damage_is_a_file_that_is_gone_or_of_another_size(tmp_path):
    store = CheckpointStore(str(tmp_path), keep=1)
    path = Path(store.save(state(1), Saver()))
    (path / "megatron" / "more").write_text("not of the checkpoint")
    assert store.damage(1) == []
    (path / "megatron" / "weights").write_bytes(b"")
    (path / "state.json").unlink()
    found = {os.path.relpath(d.file, path): d.words for d in store.damage(1)}
    assert found["megatron/weights"] == "0 bytes, saved with 1"
    assert found["state.json"] == "is gone"
    (path / "files.json").write_text("[")
    assert [d.words for d in store.damage(1)] == ["cannot be read"]


def test_exports_have_a_shelf_of_their_own(tmp_path):
    plan = CheckpointPlan(interval=1, keep=1, hf_at_end=True, digest=False, keep_every=4, hf_interval=1, hf_keep=2)
    store = CheckpointStore.of(str(tmp_path), plan)
    for step in range(1, 8):
        store.save(state(step), Saver())
        exported = store.export_hf(step, Saver())
    assert exported == str(tmp_path / "hf_steps" / "step_000007")
    assert names(exported) == ["weights"]
    assert (store.steps(), store.hf.steps()) == ([4, 7], [4, 6, 7])
    assert store.export_last_hf(Saver()) == str(tmp_path / "hf")
    assert names(tmp_path / "hf") == ["weights"]


def test_an_export_that_breaks_leaves_no_half_folder(tmp_path):
    store, trainer = CheckpointStore(str(tmp_path), keep=1), Saver()
    trainer.export_hf = kills
    for export in (lambda: store.export_hf(1, trainer), lambda: store.export_last_hf(trainer)):
        with pytest.raises(Killed):
            export()
    assert store.hf.steps() == []
    assert not (tmp_path / "hf").exists()


def test_an_empty_run_folder_has_no_checkpoint(tmp_path):
    assert CheckpointStore(str(tmp_path), keep=2).latest() is None
    CheckpointStore(str(tmp_path), keep=2).clean()
