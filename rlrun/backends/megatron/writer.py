"""Writes checkpoint files in the calling process.

Megatron-core's writer serves asynchronous saving: for a synchronous save, too, it starts a `multiprocessing.Manager`
(which outlives a killed rank, and takes seconds) and forks a child for every file, out of a process that runs gloo's,
Ray's and CUDA's threads. We save synchronously, so a loop over the same per-file function does.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync


@contextmanager
def in_process() -> Iterator[None]:
    """`dist_checkpointing.save` inside this context neither forks nor starts a manager."""
    name = "write_preloaded_data_multiproc"
    stock_write, stock_queue = vars(FileSystemWriterAsync)[name], filesystem_async._results_queue
    setattr(FileSystemWriterAsync, name, staticmethod(_write))
    filesystem_async._results_queue = queue.Queue()
    try:
        yield
    finally:
        setattr(FileSystemWriterAsync, name, stock_write)
        filesystem_async._results_queue = stock_queue


def _write(transforms: list[Any], use_msc: bool, rank: int, write_buckets: list[Any], results: queue.Queue) -> None:
    """Stands in for `write_preloaded_data_multiproc`: the same results, or the first exception, on `results`."""
    assert not use_msc
    written: dict[int, Any] = {}
    for index, bucket in enumerate(write_buckets):
        answer: queue.Queue = queue.Queue()
        count: queue.Queue = queue.Queue()
        count.put(index)  # the per-file function counts itself off
        FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, answer, count, use_fsync=True)
        _, outcome = answer.get_nowait()
        if isinstance(outcome, Exception):
            results.put(outcome)
            return
        written[index] = outcome
    results.put(written)
