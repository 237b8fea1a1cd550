"""Where metrics go: several trackers behind one small protocol. A tracker never sees a config object."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from rlrun.tracking.metrics import check_names

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class Tracker(Protocol):
    def log(self, step: int, values: dict[str, float]) -> None:
        """Metrics of one step. Steps never go backwards within a run."""
        ...

    def close(self, status: RunStatus) -> None:
        """Flushes, and marks how the run ended."""
        ...


class Trackers:
    """Fans out to several; checks every name against the documented list."""

    def __init__(self, trackers: Sequence[Tracker]):
        self._trackers = list(trackers)

    def log(self, step: int, values: dict[str, float]) -> None:
        check_names(values)
        for tracker in self._trackers:
            tracker.log(step, values)

    def close(self, status: RunStatus) -> None:
        for tracker in self._trackers:
            tracker.close(status)


class JsonlTracker:
    """One JSON object a step in metrics.jsonl. On resume, lines after the restored step are dropped."""

    def __init__(self, path: str, resume_step: int | None = None):
        kept = []
        if resume_step is not None and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                kept = [line for line in f if json.loads(line)["step"] <= resume_step]
        # Rewritten through a temporary file: a crash here must not lose the history.
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            f.writelines(kept)
        os.replace(path + ".tmp", path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (lives as long as the run)

    def log(self, step: int, values: dict[str, float]) -> None:
        record: dict[str, Any] = {"step": step, **values}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self, status: RunStatus) -> None:
        self._file.close()
