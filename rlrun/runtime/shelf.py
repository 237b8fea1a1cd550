"""Numbered folders that appear whole or not at all, and go when there are too many: step_000010, step_000020, ...

What is being written has another name until it is complete, and what is being deleted loses its name first. So a
process that is killed at any moment leaves whole folders, and debris that nobody takes for one. Names of folders in
the making are unique: the ranks of a run that was killed may live seconds longer, and write on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any

from rlrun.data.folders import begin, discard, put

STEP_DIR = re.compile(r"^step_(\d{6,})$")
DEBRIS = re.compile(r"^\..+\.(tmp|gone)$|^step_\d{6,}\.tmp$")


class Shelf:
    """The folders in `directory`. `keep`: how many of the newest stay, None for all; `keep_every`: those of every so
    many steps stay in any case."""

    def __init__(self, directory: str, keep: int | None, keep_every: int | None = None):
        self.directory = directory
        self._keep, self._keep_every = keep, keep_every

    def path(self, step: int) -> str:
        return os.path.join(self.directory, f"step_{step:06d}")

    def steps(self) -> list[int]:
        """Of complete folders, oldest first."""
        if not os.path.isdir(self.directory):
            return []
        return sorted(int(m.group(1)) for m in map(STEP_DIR.match, os.listdir(self.directory)) if m)

    def make(self, step: int) -> str:
        """An empty folder to write into, on the disk on which it will stay."""
        os.makedirs(self.directory, exist_ok=True)
        return begin(self.path(step))

    def put(self, temporary: str, step: int) -> str:
        """The complete folder under its name; then older ones go. Those of later steps, which a run leaves that goes on
        from before them, are neither counted nor deleted."""
        put(temporary, self.path(step))
        older = [s for s in self.steps() if s <= step]
        for old in older[: -self._keep] if self._keep is not None else []:
            if self._keep_every is None or old % self._keep_every:
                discard(self.path(old))
        return self.path(step)

    def clean(self) -> None:
        """Deletes what a process that was killed has left behind. Only while nobody else writes here."""
        clean(self.directory)


def clean(directory: str) -> None:
    if os.path.isdir(directory):
        for name in filter(DEBRIS.match, os.listdir(directory)):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def write_json(path: str, value: Any) -> None:
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
