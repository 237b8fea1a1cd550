"""Trainer ranks as plain processes. Importing Megatron costs seconds, so the processes stay and run one job after
another; a job is a function of `megatron_jobs`, `critic_jobs` or `checkpoint_jobs`, called with a Rendezvous first. A
job that fails ends its processes."""

from __future__ import annotations

import multiprocessing
import socket
import time
import traceback
from multiprocessing.connection import wait
from typing import Any

DEADLINE_S = 120.0


def _serve(connection: Any) -> None:
    import checkpoint_jobs
    import critic_jobs
    import megatron_jobs

    modules = (megatron_jobs, critic_jobs, checkpoint_jobs)

    while True:
        message = connection.recv()
        if message is None:
            return
        name, rendezvous, args = message
        try:
            job = next(getattr(module, name) for module in modules if hasattr(module, name))
            connection.send(("result", job(rendezvous, *args)))
        except BaseException as error:
            connection.send(("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class RankPool:
    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[Any, Any]] = []

    def run(self, world_size: int, job: str, *args: Any, fresh: bool = False) -> list[Any]:
        """The job's result on each rank. `fresh` takes new processes. AssertionError with the ranks' tracebacks."""
        if fresh:
            self.close()
        while len(self._workers) < world_size:
            self._start()
        from rlrun.backends.base import Rendezvous

        port = free_port()
        chosen = self._workers[:world_size]
        for rank, (_, connection) in enumerate(chosen):
            connection.send((job, Rendezvous(rank, world_size, "127.0.0.1", port), args))
        results: list[Any] = [None] * world_size
        pending = {connection: rank for rank, (_, connection) in enumerate(chosen)}
        deadline = time.monotonic() + DEADLINE_S
        while pending:
            ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._kill()
                raise AssertionError(f"ranks {sorted(pending.values())} did not finish {job} in {DEADLINE_S} s")
            for connection in ready:
                rank = pending.pop(connection)
                try:
                    kind, value = connection.recv()
                except EOFError:
                    kind, value = "error", "the process died"
                if kind == "error":
                    self._kill()
                    raise AssertionError(f"rank {rank} of {world_size} failed in {job}: {value}")
                results[rank] = value
        return results

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,))
        process.start()
        theirs.close()
        self._workers.append((process, ours))

    def _kill(self) -> None:
        for process, _ in self._workers:
            process.terminate()
            process.join(10)
        self._workers.clear()

    def close(self) -> None:
        for process, connection in self._workers:
            connection.send(None)
            process.join(20)
        self._kill()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
