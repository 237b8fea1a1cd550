"""Checkpoints of a whole run: <run_dir>/checkpoints/step_000010/{megatron/, state.json, files.json, buffer.npz}.

A checkpoint appears under its name only when it is complete (`rlrun.runtime.shelf`). A crash in the middle leaves the
previous one as the latest. `files.json` has the size of every file, so that one that was cut later is found before
anything starts.

Policies in Hugging Face format, written while a run trains, are on a shelf of their own: hf_steps/step_000010.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rlrun.data import folders
from rlrun.data.storage import load_groups, save_groups
from rlrun.data.types import Group
from rlrun.plan.types import CheckpointPlan
from rlrun.runtime import shelf
from rlrun.runtime.shelf import Shelf

BUFFER, STATE, FILES = "buffer.npz", "state.json", "files.json"
CHECKPOINTS, HF_STEPS, HF = "checkpoints", "hf_steps", "hf"
"""Folders of a run: its checkpoints, policies in Hugging Face format along the way, and the last of those."""


@dataclass(frozen=True)
class RunState:
    """What the loop needs to go on as if it had never stopped; weights, optimizer, LR and RNG are Megatron's part."""

    step: int
    policy_version: int
    optimizer_steps: int
    source: dict[str, Any]
    config_hash: str
    mlflow_run_id: str | None


class Saver(Protocol):
    def save(self, directory: str) -> None: ...
    def begin_save(self, directory: str) -> None: ...
    def save_done(self) -> bool: ...
    def finish_save(self) -> float: ...
    def export_hf(self, directory: str) -> None: ...
    def digest(self) -> list[dict[str, str]]: ...


@dataclass(frozen=True)
class Damage:
    """A file of a checkpoint that is not as it was saved. Sizes in bytes; `saved` is None when it is not known, `found`
    when there is no such file."""

    file: str
    saved: int | None
    found: int | None

    @property
    def words(self) -> str:
        if self.found is None:
            return "is gone"
        return f"{self.found} bytes, saved with {self.saved}" if self.saved is not None else "cannot be read"


class CheckpointStore:
    """The checkpoints of one run, and the exports beside them."""

    def __init__(self, run_dir: str, keep: int, digest: bool = False, keep_every: int | None = None):
        self.run_dir = run_dir
        self.shelf = Shelf(os.path.join(run_dir, CHECKPOINTS), keep, keep_every)
        self.hf = Shelf(os.path.join(run_dir, HF_STEPS), None)
        self._digest = digest
        self._pending: tuple[int, str] | None = None  # step and folder of what is being written

    @classmethod
    def of(cls, run_dir: str, plan: CheckpointPlan) -> CheckpointStore:
        store = cls(run_dir, plan.keep, plan.digest, plan.keep_every)
        store.hf = Shelf(store.hf.directory, plan.hf_keep, plan.keep_every)
        return store

    def path(self, step: int) -> str:
        return self.shelf.path(step)

    def steps(self) -> list[int]:
        """Complete checkpoints, oldest first."""
        return self.shelf.steps()

    def clean(self) -> None:
        """Deletes what a killed process of this run has left half done."""
        self.shelf.clean()
        self.hf.clean()
        shelf.clean(self.run_dir)

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self, state: RunState, trainer: Saver, buffer: Sequence[Group] = ()) -> str:
        """`buffer`: groups that wait for the next step."""
        assert self._pending is None, "finish comes before another save"
        temporary = self.shelf.make(state.step)
        trainer.save(_trainer_part(temporary))
        self._write_run_part(temporary, state, trainer, buffer)
        return self._complete(temporary, state.step)

    def begin(self, state: RunState, trainer: Saver, buffer: Sequence[Group] = ()) -> None:
        """As `save`, but returns when the state is copied. The checkpoint appears with `finish`."""
        assert self._pending is None, "finish comes before another save"
        temporary = self.shelf.make(state.step)
        trainer.begin_save(_trainer_part(temporary))
        self._write_run_part(temporary, state, trainer, buffer)
        self._pending = state.step, temporary

    @property
    def pending(self) -> bool:
        """Whether a checkpoint was begun and is not finished."""
        return self._pending is not None

    def finish(self, trainer: Saver) -> tuple[str, float]:
        """Waits for the checkpoint that was begun; returns its folder, and the seconds for which it was written."""
        assert self._pending is not None, "nothing was begun"
        (step, temporary), self._pending = self._pending, None
        seconds = trainer.finish_save()
        return self._complete(temporary, step), seconds

    def export_hf(self, step: int, trainer: Saver) -> str:
        """The policy in Hugging Face format, as it is now."""
        temporary = self.hf.make(step)
        trainer.export_hf(temporary)
        return self.hf.put(temporary, step)

    def export_last_hf(self, trainer: Saver) -> str:
        """The policy at the end of the run."""
        final = os.path.join(self.run_dir, HF)
        temporary = folders.begin(final)
        trainer.export_hf(temporary)
        folders.put(temporary, final)
        return final

    def _write_run_part(self, temporary: str, state: RunState, trainer: Saver, buffer: Sequence[Group]) -> None:
        if self._digest:
            shelf.write_json(os.path.join(temporary, "digest.json"), trainer.digest())
        shelf.write_json(os.path.join(temporary, STATE), asdict(state))
        if buffer:
            save_groups(os.path.join(temporary, BUFFER), buffer)

    def _complete(self, temporary: str, step: int) -> str:
        shelf.write_json(os.path.join(temporary, FILES), _sizes(temporary))
        return self.shelf.put(temporary, step)

    # -- reading --------------------------------------------------------------------------------------------------

    def latest(self) -> tuple[str, RunState] | None:
        """Folder and state of the newest complete checkpoint."""
        steps = self.steps()
        if not steps:
            return None
        return self.path(steps[-1]), self.state(steps[-1])

    def state(self, step: int) -> RunState:
        """Raises ValueError or TypeError when it cannot be read."""
        with open(os.path.join(self.path(step), STATE), encoding="utf-8") as f:
            return RunState(**json.load(f))

    def damage(self, step: int) -> list[Damage]:
        """Files of a checkpoint that are gone, or have another size than when it was saved."""
        path = self.path(step)
        found = _sizes(path)
        try:
            with open(os.path.join(path, FILES), encoding="utf-8") as f:
                saved: dict[str, int | None] = {name: int(size) for name, size in json.load(f).items()}
        except FileNotFoundError:  # of a version that wrote none
            saved = {STATE: found.get(STATE)}
        except (ValueError, TypeError, AttributeError):
            return [Damage(os.path.join(path, FILES), None, 0)]
        return [
            Damage(os.path.join(path, name), size, found.get(name))
            for name, size in saved.items()
            if found.get(name) != size or name not in found
        ]

    def load_buffer(self, path: str) -> list[Group]:
        """The groups that waited when the checkpoint at `path` was made."""
        file = os.path.join(path, BUFFER)
        return load_groups(file) if os.path.exists(file) else []


def _trainer_part(temporary: str) -> str:
    directory = os.path.join(temporary, "megatron")
    os.makedirs(directory)
    return directory


def _sizes(directory: str) -> dict[str, int]:
    """Every file below, by its path in it, with its size in bytes."""
    found = {}
    for folder, _, files in os.walk(directory):
        for file in sorted(files):
            path = os.path.join(folder, file)
            found[os.path.relpath(path, directory)] = os.path.getsize(path)
    found.pop(FILES, None)
    return found
