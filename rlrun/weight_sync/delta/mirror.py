"""An engine's own copy of the weights as the trainer names them.

An engine holds fused and sliced weights, to which a delta does not apply. The copy is in a file on the engine's
machine, which all ranks of the engine map: it takes the weights' bytes once, in the page cache or on the disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from rlrun.weight_sync.delta.codec import DTYPES
from rlrun.weight_sync.delta.file import read_frames
from rlrun.weight_sync.delta.stream import Update

ALIGN = 64


class Place(NamedTuple):
    """Where a tensor lies in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


class Mirror:
    """Filled by the first full update, then kept up to date by changes. One rank writes, others `open_tensors`."""

    def __init__(self, folder: str | None = None):
        """`folder` takes the file, by default the temporary one of this process."""
        self._folder = folder
        self.version: int | None = None
        self.path = ""
        self.places: dict[str, Place] = {}
        self.tensors: dict[str, Tensor] = {}

    def apply(self, path: str) -> set[str]:
        """Brings the copy to the version of the update in `path`; returns the names of the tensors that this changes
        (of a full update, all). Raises a DeltaError, or OSError, before anything is written."""
        update = Update.read(read_frames(path))
        if update.base_version is None and not self.tensors:
            self._make_room(update)
        update.check(self.tensors, self.version)
        held, self.version = self.version, None  # until all is written
        self.version = update.apply(self.tensors, held, content=False)
        if update.base_version is None:
            return set(self.tensors)
        return {name for record in update.records if record.delta.changed for name, _ in record.changes()}

    def unlink(self) -> None:
        """Takes the file's name away, once every rank has opened it: it then ends with the last of them, however they
        end."""
        if self.path:
            os.remove(self.path)
            self.path = ""

    def _make_room(self, update: Update) -> None:
        places, size = {}, 0
        for record in update.records:
            for part in record.parts:
                places[part.name] = Place(record.delta.dtype, tuple(part.shape), size)
                nbytes = prod(part.shape) * DTYPES[record.delta.dtype].itemsize
                size += nbytes + -nbytes % ALIGN
        handle, path = tempfile.mkstemp(prefix="rlrun-weights-", dir=self._folder)
        try:
            # All of it now: a disk that fills up under a mapping ends the process.
            os.posix_fallocate(handle, 0, max(size, ALIGN))
        except OSError:
            os.remove(path)
            raise
        finally:
            os.close(handle)
        self.path, self.places = path, places
        self.tensors = open_tensors(path, places)


def open_tensors(path: str, places: Mapping[str, Place]) -> dict[str, Tensor]:
    """The tensors in the file, as views of it: what one process writes, the others see."""
    data = torch.from_file(path, shared=True, size=os.path.getsize(path), dtype=torch.uint8)
    tensors = {}
    for name, (kind, shape, start) in places.items():
        dtype = DTYPES[kind]
        tensors[name] = data[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)
    return tensors
