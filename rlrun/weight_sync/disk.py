"""Weights by disk: a Hugging Face checkpoint of each version in a folder that trainer rank 0 and all engines see.

SGLang reads it as it read the first one (`/update_weights_from_disk`), so nothing of ours runs in the engine and no
GPU, host or network has to be shared. A version's folder appears when it is complete, and stays until every engine has
confirmed the next: an engine may read it again to undo an update that failed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from rlrun.backends.base import EngineAddress
from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.files import Files
from rlrun.weight_sync.senders import PART, Sender, check_names, wait_all


class FileSender(Sender):
    """Base of what travels by disk: a folder of its own, empty at first and gone at the end."""

    def __init__(self, plan: SyncPlan, engines: Sequence[EngineAddress], device: str, timeout_s: float, files: Files):
        super().__init__(plan, engines, device, timeout_s)
        self.files = files

    def connect(self) -> None:
        """What a killed run has left there is deleted. Raises RunFailed when the folder cannot be made."""
        folder = self.files.folder
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.makedirs(folder)
        except OSError as e:
            hint = "set weight_sync.dir to a folder that can be written to, on a disk that all nodes share"
            raise RunFailed(PART, f"{folder} cannot be made: {e}", hint) from e

    def close(self) -> None:
        shutil.rmtree(self.files.folder, ignore_errors=True)
        super().close()


class DiskSender(FileSender):
    """Whole checkpoints, one folder a version."""

    def send(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, expected_names: Sequence[str]
    ) -> dict[str, float]:
        """As `Sender.send`. `bytes` are those of the weights, without what is copied from the first checkpoint."""
        start = time.perf_counter()
        folder = os.path.join(self.files.folder, f"version_{version:06d}")
        counts = {"bytes": 0.0, "tensors": 0.0}
        self.files.write(_counted(check_names(named_tensors, expected_names), counts), folder)
        body = {"model_path": folder, "load_format": "auto", "weight_version": str(version), "flush_cache": True}
        wait_all(self._post_all("/update_weights_from_disk", [body] * len(self.engines)))
        self._check_versions(version)
        self._keep_only(os.path.basename(folder))
        return {**counts, "seconds": time.perf_counter() - start}

    def _keep_only(self, name: str) -> None:
        for other in os.listdir(self.files.folder):
            if other != name:
                shutil.rmtree(os.path.join(self.files.folder, other), ignore_errors=True)


def _counted(named: Iterable[tuple[str, Tensor]], counts: dict[str, float]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in named:
        counts["bytes"] += tensor.numel() * tensor.element_size()
        counts["tensors"] += 1
        yield name, tensor
