"""The closed forms for the long tail and for staleness, against schedules played through event by event."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace

import pytest

from rlrun.config.load import load
from rlrun.plan.context import Context
from rlrun.plan.decide.time import work_of
from rlrun.plan.estimate.generate import generate
from rlrun.plan.estimate.step import expected_staleness
from rlrun.plan.estimate.work import Work


def work() -> Work:
    loaded = load(["+experiment=qwen3_grpo", "placement=split_8gpu"])
    found = work_of(Context(loaded.config, loaded.origins))
    assert found is not None
    return found


WORK = work()


def makespan(lengths: list[float], slots: int) -> float:
    """Decode steps until every sample has ended, when each free slot takes the next one."""
    ends: list[float] = []
    for length in lengths:
        begin = heapq.heappop(ends) if len(ends) == slots else 0.0
        heapq.heappush(ends, begin + length)
    return max(ends)


@pytest.mark.parametrize("slots", [8, 32, 64, 128, 256])
@pytest.mark.parametrize("mean", [512.0, 1024.0, 1800.0])
def test_the_number_of_decode_steps_is_that_of_a_simulated_engine(slots, mean):
    """256 samples of evenly spread lengths on one engine, of which the longest reaches the limit of 2,048. The closed
    form is near it, and rather too long when one sample is far longer than all others."""
    w = replace(WORK, num_samples=256 * WORK.num_engines, response_tokens=mean, max_running_requests=slots)
    w = replace(w, in_flight_samples=w.num_samples, layout=replace(w.layout, max_total_tokens=None))
    g = generate(w)
    steps = 256 * mean / g.running + (w.longest_response - mean)
    rng = random.Random(7)
    spans = []
    for _ in range(20):
        lengths = [rng.uniform(mean - w.spread, mean + w.spread) for _ in range(255)] + [2048.0]
        rng.shuffle(lengths)
        spans.append(makespan(lengths, g.running))
    assert 0.9 < steps / (sum(spans) / len(spans)) < 1.2
    assert g.tail_s == pytest.approx((w.longest_response - mean) * g.decode_step_s)


def simulated_staleness(in_flight: int, batch: int, train_s: float, rng: random.Random) -> tuple[float, float]:
    """(mean staleness, share of time in which the trainer is busy) of groups that take 5 to 15 s each. The trainer
    takes `batch` of those that have ended; when it is done, the version rises and new groups are drawn by it."""
    clock, version, free_at, busy = 0.0, 0, 0.0, 0.0
    running = [(rng.uniform(0, 15), 0) for _ in range(in_flight)]
    heapq.heapify(running)
    rises: list[float] = []
    queue: list[int] = []
    lags: list[int] = []
    while len(lags) < 400 * batch:
        clock, drawn = heapq.heappop(running)
        while rises and rises[0] <= clock:
            version += 1
            rises.pop(0)
        queue.append(drawn)
        if len(queue) >= batch and clock >= free_at:
            lags += [version - v for v in queue[:batch]]
            del queue[:batch]
            free_at = clock + train_s
            rises.append(free_at)
            busy += train_s
        heapq.heappush(running, (clock + rng.uniform(5, 15), version))
    settled = lags[50 * batch :]
    return sum(settled) / len(settled), busy / clock


@pytest.mark.parametrize(("in_flight", "batch"), [(16, 32), (32, 32), (64, 32), (96, 32)])
@pytest.mark.parametrize("train_s", [0.1, 1.5])
def test_mean_staleness_is_that_of_a_simulated_run(in_flight, batch, train_s):
    found, share = simulated_staleness(in_flight, batch, train_s, random.Random(3))
    assert share < 0.9, "the engines are the slower side"
    w = replace(WORK, mode="fully_async", num_samples=batch, in_flight_samples=in_flight, max_staleness=9)
    assert expected_staleness(w, share, trainer_bound=False) == pytest.approx(found, abs=0.1)
