"""Checkpoints of a whole run: <run_dir>/checkpoints/step_000010/{megatron/, state.json, buffer.npz}.

A checkpoint appears under its name only when it is complete: everything is written into a `.tmp` folder, synced, and
renamed. A crash in the middle leaves the previous one as the latest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rlrun.data.storage import load_groups, save_groups
from rlrun.data.types import Group

BUFFER = "buffer.npz"
STEP_DIR = re.compile(r"^step_(\d{6,})$")


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
    def digest(self) -> list[dict[str, str]]: ...


def _write_json(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.flush()
        os.fsync(f.fileno())


class CheckpointStore:
    def __init__(self, run_dir: str, keep: int, digest: bool = False):
        self.directory = os.path.join(run_dir, "checkpoints")
        self._keep, self._digest = keep, digest

    def path(self, step: int) -> str:
        return os.path.join(self.directory, f"step_{step:06d}")

    def steps(self) -> list[int]:
        """Complete checkpoints, oldest first."""
        if not os.path.isdir(self.directory):
            return []
        return sorted(int(m.group(1)) for m in map(STEP_DIR.match, os.listdir(self.directory)) if m)

    def save(self, state: RunState, trainer: Saver, buffer: Sequence[Group] = ()) -> str:
        """`buffer`: groups that wait for the next step."""
        final, temporary = self.path(state.step), self.path(state.step) + ".tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        os.makedirs(os.path.join(temporary, "megatron"))
        trainer.save(os.path.join(temporary, "megatron"))
        if self._digest:
            _write_json(os.path.join(temporary, "digest.json"), trainer.digest())
        _write_json(os.path.join(temporary, "state.json"), asdict(state))
        if buffer:
            save_groups(os.path.join(temporary, BUFFER), buffer)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        self._prune()
        return final

    def latest(self) -> tuple[str, RunState] | None:
        """Folder and state of the newest complete checkpoint."""
        steps = self.steps()
        if not steps:
            return None
        path = self.path(steps[-1])
        with open(os.path.join(path, "state.json"), encoding="utf-8") as f:
            return path, RunState(**json.load(f))

    def load_buffer(self, path: str) -> list[Group]:
        """The groups that waited when the checkpoint at `path` was made."""
        file = os.path.join(path, BUFFER)
        return load_groups(file) if os.path.exists(file) else []

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self.path(step), ignore_errors=True)
