"""A line on stderr about reading or writing weights, when it takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

import torch.distributed as dist

from rlrun.runtime.progress import duration

PATIENCE_S = 2.0
EVERY_S = 10.0
"""Between two lines where a line cannot be rewritten, e.g. in a log."""


class Slow:
    """`what` is done to `total` bytes. Silent on all ranks but the first."""

    def __init__(self, what: str, total: int, stream: TextIO | None = None):
        self._what, self._total, self._done = what, total, 0
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._quiet = dist.is_initialized() and dist.get_rank() != 0
        self._began = time.monotonic()
        self._next = self._began + PATIENCE_S

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (0.2 if self._live else EVERY_S)
        left = (now - self._began) * (self._total - self._done) / max(self._done, 1)
        text = f"{self._what}: {self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB, left {duration(max(left, 0.0))}"
        self._stream.write(f"\r\x1b[2K{text}" if self._live else text + "\n")
        self._stream.flush()

    def end(self) -> None:
        """The time it took, if anything was said before."""
        took = time.monotonic() - self._began
        if not self._quiet and self._next > self._began + PATIENCE_S:
            text = f"{self._what}: {self._done / 1e9:.1f} GB in {duration(took)}"
            self._stream.write(f"\r\x1b[2K{text}\n" if self._live else text + "\n")
            self._stream.flush()
