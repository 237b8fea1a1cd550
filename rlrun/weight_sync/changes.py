"""Weights by their changes, through a file: what differs from the version that all engines have confirmed.

The first update is full, and fills the copy that each engine keeps (`delta.mirror`). Every later one is checked there
against its base and its result, to the bit, before anything is written. An engine that refuses one, because it was
started anew or the file was damaged, gets a full update of the same version, once.
"""

from __future__ import annotations

import base64
import os
import pickle
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from torch import Tensor

from rlrun.backends.base import EngineAddress
from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.delta import Frame, Snapshot
from rlrun.weight_sync.delta.file import write_frames
from rlrun.weight_sync.disk import FileSender
from rlrun.weight_sync.files import CHANGES_FORMAT, Files
from rlrun.weight_sync.senders import PART, check_names, wait_all


class DeltaSender(FileSender):
    """A file of changes for each version, deleted when all engines have it."""

    def __init__(self, plan: SyncPlan, engines: Sequence[EngineAddress], device: str, timeout_s: float, files: Files):
        super().__init__(plan, engines, device, timeout_s, files)
        self._snapshot = Snapshot("cpu", low_bits=True)

    def send(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, expected_names: Sequence[str]
    ) -> dict[str, float]:
        """As `Sender.send`. `bytes` are those of the files written; `full_updates` the engines that got all weights."""
        start = time.perf_counter()
        checked, bucket = check_names(named_tensors, expected_names), self.plan.bucket_bytes
        if self._snapshot.version is None:
            self._snapshot.take(checked, version)
            behind, written = self.engines, 0
        else:
            path, written = self._write("changes", version, self._snapshot.update(checked, version, bucket))
            sent = self._post_file(path, version, self.engines)
            behind = tuple(engine for engine, answer in zip(self.engines, sent, strict=True) if answer.exception())
            # Whatever became of the engines: from here on they have this version, or the run ends.
            self._snapshot.commit()
            os.remove(path)
        if behind:
            path, size = self._write("full", version, self._snapshot.full(bucket))
            wait_all(self._post_file(path, version, behind))
            os.remove(path)
            written += size
        self._check_versions(version)
        return {
            "bytes": float(written),
            "tensors": float(len(expected_names)),
            "seconds": time.perf_counter() - start,
            "full_updates": float(len(behind)),
        }

    def _write(self, kind: str, version: int, frames: Iterable[Frame]) -> tuple[str, int]:
        path = os.path.join(self.files.folder, f"{kind}_{version:06d}.rlrun")
        try:
            return path, write_frames(path, frames)
        except OSError as e:
            hint = "make room on its disk, or set weight_sync.dir to another folder"
            raise RunFailed(PART, f"writing {path} failed: {e}", hint) from e

    def _post_file(self, path: str, version: int, engines: Sequence[EngineAddress]) -> list[Future]:
        """The answers of these engines, all of them there."""
        name = base64.b64encode(pickle.dumps(path)).decode()
        fields = {"load_format": CHANGES_FORMAT, "weight_version": str(version), "flush_cache": True}
        answers = [
            self._pool.submit(
                self._post,
                engine,
                "/update_weights_from_tensor",
                {"serialized_named_tensors": [name] * engine.tp, **fields},
            )
            for engine in engines
        ]
        for answer in answers:
            answer.exception()  # waits
        return answers
