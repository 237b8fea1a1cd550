"""The real loop with fake engines: what is saved when, at once and beside training, and what a failure leaves."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_loop import Setup, _made, _timeless

from rlrun.errors import RunFailed
from rlrun.runtime.checkpoint import CheckpointStore

QUIET = ["eval.interval=null", "eval.before_train=false", "data.eval=null"]
BESIDE = "checkpoint.async_save=true"


class Saving(Setup):
    """A run whose background saves take as many step boundaries as `slow` says. `calls`: what the trainer was asked."""

    def __init__(self, folder, *words, slow=0):
        super().__init__(folder, *QUIET, *words, run_dir=_made(folder) if not folder.exists() else folder)
        self.store = CheckpointStore.of(str(folder), self.plan.checkpoint)
        self.calls, self._polls, self._slow = [], 0, slow
        for name in ("train_step", "save", "begin_save", "finish_save", "export_hf"):
            self._record(name)
        self.trainer.save_done = self.save_done

    def _record(self, name):
        stock = getattr(self.trainer, name)

        def recorded(*args):
            self.calls.append(name)
            if name == "begin_save":
                self._polls = 0
            return stock(*args)

        setattr(self.trainer, name, recorded)

    def save_done(self):
        self._polls += 1
        return self._polls > self._slow


def saved_table(setup, step):
    return torch.load(os.path.join(setup.store.path(step), "megatron", "fake.pt"))["table"]


def test_saved_beside_training_a_run_is_the_same_and_so_are_its_checkpoints(tmp_path):
    words = ["num_steps=6", "checkpoint.interval=2", "checkpoint.keep=9"]
    at_once, beside = Saving(tmp_path / "a", *words), Saving(tmp_path / "b", *words, BESIDE)
    for setup in (at_once, beside):
        setup.run()
    assert at_once.store.steps() == beside.store.steps() == [2, 4, 6]
    assert _timeless(at_once.rows()) == _timeless(beside.rows())
    for step in (2, 4, 6):
        assert torch.equal(saved_table(at_once, step), saved_table(beside, step))
        states = [Path(setup.store.path(step), "state.json").read_text() for setup in (at_once, beside)]
        assert states[0] == states[1]
    assert not torch.equal(saved_table(beside, 2), saved_table(beside, 4))
    assert "begin_save" not in at_once.calls


def test_a_save_is_completed_at_the_first_step_after_it_is_written_and_the_last_before_the_end(tmp_path):
    setup = Saving(tmp_path / "run", "num_steps=6", "checkpoint.interval=3", BESIDE, slow=1)
    run = setup.run()
    timings = [(row["step"], "perf/save_s" in row, "perf/save_background_s" in row) for row in setup.rows()]
    assert timings == [
        (1, False, False),
        (2, False, False),
        (3, True, False),
        (4, False, False),
        (5, True, True),
        (6, True, False),
    ]
    assert run.last_checkpoint == setup.store.path(6)
    assert setup.store.steps() == [3, 6]
    assert setup.calls[-1] == "save"
    assert not setup.store.pending


def test_a_second_save_and_the_end_wait_for_the_first(tmp_path):
    setup = Saving(tmp_path / "run", "num_steps=3", "checkpoint.interval=1", BESIDE, slow=99)
    setup.run()
    saves = [call for call in setup.calls if call.endswith("save")]
    assert saves == ["begin_save", "finish_save", "begin_save", "finish_save", "save"]
    assert setup.store.steps() == [2, 3]


def test_a_run_that_stops_early_leaves_nothing_in_the_making(tmp_path):
    setup = Saving(tmp_path / "run", "num_steps=6", "stop_after=2", "checkpoint.interval=1", BESIDE, slow=99)
    setup.run()
    assert setup.store.steps() == [1, 2]
    assert sorted(os.listdir(setup.store.shelf.directory)) == ["step_000001", "step_000002"]


def test_stopped_and_resumed_from_a_save_beside_training_equals_uninterrupted(tmp_path):
    words = ["num_steps=6", "checkpoint.interval=2", "checkpoint.keep=9", BESIDE]
    whole = Saving(tmp_path / "a", *words)
    whole.run()
    first = Saving(tmp_path / "b", *words, "stop_after=5")
    first.run()
    for step in (4, 5):  # as if it had been killed while it wrote step 4
        os.rename(first.store.path(step), os.path.join(first.store.shelf.directory, f".step_{step:06d}.0a.tmp"))
    second = Saving(tmp_path / "b", *words)
    second.store.clean()
    second.run(resume=True)
    assert _timeless(second.rows()) == _timeless(whole.rows())
    assert torch.equal(saved_table(second, 6), saved_table(whole, 6))
    assert sorted(os.listdir(second.store.shelf.directory)) == ["step_000002", "step_000004", "step_000006"]


def test_a_save_that_fails_beside_training_ends_the_run_with_its_folder(tmp_path):
    setup = Saving(tmp_path / "run", "num_steps=4", "checkpoint.interval=1", BESIDE)
    finish, tries = setup.trainer.finish_save, []

    def full():
        tries.append(1)
        if len(tries) == 2:
            raise RunFailed("trainer", f"saving the checkpoint to {setup.store.shelf.directory} failed: disk full")
        return finish()

    setup.trainer.finish_save = full
    with pytest.raises(RunFailed, match=r"saving the checkpoint to .*checkpoints failed: disk full"):
        setup.run()
    assert setup.store.steps() == [1]
    assert len(tries) == 2, "a save that failed was completed again"


@pytest.mark.parametrize(
    ("part", "completed"), [("training", [2]), ("engine 0", [2]), ("trainer", [2]), ("trainer rank 1", [])]
)
def test_a_run_that_breaks_completes_its_save_unless_a_rank_is_gone(tmp_path, part, completed):
    setup = Saving(tmp_path / "run", "num_steps=4", "checkpoint.interval=2", BESIDE, slow=99)
    step = setup.trainer.train_step

    def breaks(batches):
        if setup.calls.count("train_step") == 4:
            raise RunFailed(part, "broke")
        return step(batches)

    setup.trainer.train_step = breaks
    with pytest.raises(RunFailed, match=f"{part}: broke"):
        setup.run()
    assert setup.store.steps() == completed


def test_the_first_error_is_told_when_completing_a_save_fails_as_well(tmp_path):
    setup = Saving(tmp_path / "run", "num_steps=4", "checkpoint.interval=2", BESIDE, slow=99)
    step = setup.trainer.train_step

    def fails(*_):
        raise RunFailed("engine 0", "died")

    def breaks(batches):
        if setup.calls.count("train_step") == 4:
            setup.trainer.finish_save = fails
            raise RunFailed("training", "the loss is nan")
        return step(batches)

    setup.trainer.train_step = breaks
    with pytest.raises(RunFailed, match="the loss is nan"):
        setup.run()
    assert setup.store.steps() == []


def test_weights_are_exported_along_the_way_and_the_last_ones_once(tmp_path):
    words = ["num_steps=6", "checkpoint.hf_interval=2", "checkpoint.hf_keep=1", "checkpoint.interval=3"]
    setup = Saving(tmp_path / "run", *words)
    setup.run()
    assert ["perf/hf_s" in row for row in setup.rows()] == [False, True, False, True, False, False]
    assert os.listdir(tmp_path / "run" / "hf_steps") == ["step_000004"]
    assert setup.calls.count("export_hf") == 2
    table = torch.load(tmp_path / "run" / "hf_steps" / "step_000004" / "fake.pt")["table"]
    assert not torch.equal(table, saved_table(setup, 3))


def test_an_export_holds_the_weights_of_its_step(tmp_path):
    words = ["num_steps=4", "checkpoint.hf_interval=2", "checkpoint.interval=2", "checkpoint.hf_at_end=false"]
    setup = Saving(tmp_path / "run", *words)
    setup.run()
    assert sorted(os.listdir(tmp_path / "run" / "hf_steps")) == ["step_000002", "step_000004"]
    for step in (2, 4):
        exported = torch.load(tmp_path / "run" / "hf_steps" / f"step_{step:06d}" / "fake.pt")["table"]
        assert torch.equal(exported, saved_table(setup, step))


def test_the_checkpoints_of_every_so_many_steps_stay(tmp_path):
    setup = Saving(
        tmp_path / "run", "num_steps=7", "checkpoint.interval=1", "checkpoint.keep=1", "checkpoint.keep_every=3"
    )
    setup.run()
    assert setup.store.steps() == [3, 6, 7]
    assert json.loads(Path(setup.store.path(3), "state.json").read_text())["step"] == 3
