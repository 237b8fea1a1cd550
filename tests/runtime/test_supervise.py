"""Deadlines and deaths, with real Ray actors: every wait ends with the name of the part that is to blame."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from rlrun.errors import Problem, RlrunError, RunFailed
from rlrun.runtime.supervise import Supervisor

pytestmark = pytest.mark.engines


class Part:
    def __init__(self):
        self.event = threading.Event()

    def pid(self):
        return os.getpid()

    def value(self, x):
        return x

    def block(self):
        self.event.wait()
        return "killed by signal 9"

    def release(self):
        self.event.set()

    def fail(self, error):
        raise error


@pytest.fixture(scope="module")
def part_class():
    import ray

    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray.remote(Part).options(num_cpus=0, max_concurrency=4)
    ray.shutdown()


def test_results_come_back_in_the_order_of_the_calls(part_class):
    parts = [part_class.remote() for _ in range(2)]
    calls = [(f"rank {i}", p.value.remote(i)) for i, p in enumerate(parts)]
    assert Supervisor().wait_all(calls, "counting", 30) == [0, 1]


def test_a_late_part_is_named_when_the_deadline_passes(part_class):
    quick, slow = part_class.remote(), part_class.remote()
    calls = [("rank 0", quick.value.remote(1)), ("rank 1", slow.block.remote())]
    with pytest.raises(RunFailed, match=r"rank 1: did not finish thinking within 2 s"):
        Supervisor().wait_all(calls, "thinking", 2)


def test_a_killed_part_is_named_even_when_its_peers_fail_first(part_class):
    import ray

    victim, survivor = part_class.remote(), part_class.remote()
    pid = ray.get(victim.pid.remote())
    calls = [
        ("rank 0", survivor.fail.remote(ConnectionError("peer closed"))),
        ("rank 1", victim.block.remote()),
    ]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"rank 1: died during a collective"):
        Supervisor().wait_all(calls, "a collective", 30)


def test_errors_of_ours_cross_the_actor_boundary_whole(part_class):
    part = part_class.remote()
    for error in (RunFailed("engine 3", "refused", "look"), RlrunError(Problem("code", "summary"))):
        with pytest.raises(type(error)) as caught:
            Supervisor().wait_all([("rank 0", part.fail.remote(error))], "x", 30)
        assert str(caught.value) == str(error)


def test_an_unexpected_error_becomes_one_line_naming_the_part(part_class):
    part = part_class.remote()
    with pytest.raises(RunFailed, match=r"rank 0: failed during x: .*ValueError: second line"):
        Supervisor().wait_all([("rank 0", part.fail.remote(ValueError("second line")))], "x", 30)


def test_a_watched_server_that_exits_ends_a_rollout_at_once(part_class):
    server = part_class.remote()
    supervisor = Supervisor()
    supervisor.watch("engine 0", server.block.remote())

    async def rollout():
        server.release.remote()
        await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"engine 0: died: killed by signal 9"):
        asyncio.run(supervisor.guard(rollout(), "generation", 60))
    assert time.monotonic() - began < 20


def test_a_rollout_that_misses_its_deadline_is_cancelled():
    cancelled = []

    async def rollout():
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(True)

    with pytest.raises(RunFailed, match=r"generation: not finished within 0\.5 s"):
        asyncio.run(Supervisor().guard(rollout(), "generation", 0.5))
    assert cancelled == [True]


def test_guard_returns_the_result():
    async def rollout():
        return 7

    assert asyncio.run(Supervisor().guard(rollout(), "generation", 5)) == 7
