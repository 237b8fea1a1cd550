"""Writes checkpoint files in the calling process: at once, or in a thread while training goes on.

Megatron-core's writer serves asynchronous saving: even for a synchronous save it starts a `multiprocessing.Manager`
(which outlives a killed rank, and takes seconds) and forks a child for every file, out of a process that runs gloo's,
Ray's and CUDA's threads. A thread that calls the same per-file function does: files are written with the interpreter
lock released. What needs other ranks happens before and after, in the thread that also trains.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedBase
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from rlrun.errors import RunFailed


@contextmanager
def in_process() -> Iterator[None]:
    """A request that `dist_checkpointing.save` makes inside this context neither forks nor starts a manager."""
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
    # Without its decorator, which switches the garbage collector of the whole process off: that is for forked children.
    write_file = FileSystemWriterAsync.write_preloaded_data.__wrapped__
    written: dict[int, Any] = {}
    for index, bucket in enumerate(write_buckets):
        answer: queue.Queue = queue.Queue()
        count: queue.Queue = queue.Queue()
        count.put(index)  # the per-file function counts itself off
        write_file(transforms, index, bucket, answer, count, use_fsync=True)
        _, outcome = answer.get_nowait()
        if isinstance(outcome, Exception):
            raise outcome
        written[index] = outcome
    results.put(written)


class Writing:
    """The files of one checkpoint, from the requests of `dist_checkpointing.save(..., async_sharded_save=True)`.

    `run` writes them here and now, `start` in a thread. `finish` then completes the checkpoint; it is collective, and
    raises the same RunFailed on every rank when one could not write. No collective runs in the thread, so that those of
    training keep their order.
    """

    def __init__(self, directory: str, requests: Sequence[AsyncRequest]):
        self._directory, self._requests = directory, list(requests)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._seconds = 0.0

    def run(self) -> None:
        began = time.monotonic()
        try:
            for request in self._requests:
                if request.async_fn is not None:  # None where this rank has nothing to write
                    request.async_fn(*request.async_fn_args)
        except Exception as error:  # told by `finish`, to all ranks
            self._error = error
        self._seconds = time.monotonic() - began

    def start(self) -> None:
        # A daemon: a run that ends for another reason does not wait for its disk.
        self._thread = threading.Thread(target=self.run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether this rank has written all of its files, or failed to."""
        return self._thread is None or not self._thread.is_alive()

    def finish(self) -> float:
        """Waits for the files of all ranks, and writes what makes them a checkpoint. Returns the seconds that the
        slowest rank wrote."""
        if self._thread is not None:
            self._thread.join()
        mine = None if self._error is None else f"{type(self._error).__name__}: {self._error}"
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, (mine, self._seconds))
        causes = [f"rank {rank}: {why}" for rank, (why, _) in enumerate(told) if why is not None]
        if causes:
            raise _failed(self._directory, "; ".join(causes), reading=False)
        with failing_as_run_failed(self._directory):
            for request in self._requests:
                for complete in request.finalize_fns:
                    complete()
        return max(seconds for _, seconds in told)


def on_host(request: AsyncRequest, live: Sequence[Tensor]) -> AsyncRequest:
    """The request with its tensors in host memory, none of which shares memory with a tensor of `live`, so that what is
    written does not see what happens to those later."""
    if request.preload_fn is None:
        return request
    buckets = request.preload_fn()  # from a GPU, through pinned memory; what is on the host stays where it is
    places = {place(tensor) for tensor in live}

    def own(tensor: Tensor) -> Tensor:
        # Views were copied by Megatron, so that no file holds all of their storage; they are not copied again.
        return tensor.clone() if place(tensor) in places else tensor

    buckets = [
        (file, key, (data, [(item, own(tensor)) for item, tensor in tensors])) for file, key, (data, tensors) in buckets
    ]
    rank, _, results = request.async_fn_args
    return request._replace(async_fn_args=(rank, buckets, results), preload_fn=None)


def place(tensor: Tensor) -> int:
    """The same for all tensors that share memory."""
    return tensor.untyped_storage().data_ptr()


def tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor in a (sharded) state dict."""
    if isinstance(state, ShardedBase):
        state = state.data
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for item in state.values():
            yield from tensors(item)
    elif isinstance(state, list | tuple):
        for item in state:
            yield from tensors(item)


@contextmanager
def failing_as_run_failed(directory: str, reading: bool = False) -> Iterator[None]:
    """What goes wrong inside is a RunFailed about the checkpoint in `directory`, with the causes on all ranks that this
    one was told of."""
    try:
        yield
    except (Exception, CheckpointException) as error:  # torch's CheckpointException is no Exception
        failures = getattr(error, "failures", None) or {}
        causes = "; ".join(f"rank {rank}: {cause[0]!r}" for rank, cause in sorted(failures.items())) or str(error)
        raise _failed(directory, causes, reading) from error


def _failed(directory: str, causes: str, reading: bool) -> RunFailed:
    doing = f"reading the checkpoint in {directory}" if reading else f"saving the checkpoint to {directory}"
    hint = "check the folder and the free space on its disk"
    if reading:
        hint = "give the folder of its step another name, and `rlrun resume` goes on from the checkpoint before it"
    return RunFailed("trainer", f"{doing} failed: {causes}", hint)
