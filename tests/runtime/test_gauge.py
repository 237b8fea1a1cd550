"""Memory that was measured, beside memory that was planned."""

from __future__ import annotations

import pytest

from rlrun.plan.build import load_plan
from rlrun.runtime.gauge import GIB, PLANNED, Gauge, against
from rlrun.tracking.metrics import PHASES, check_names

HOST = {"host_used": 8.0 * GIB, "host_rss": 1.0 * GIB, "host_parked": 0.5 * GIB}


def rank(used: float, reserved: float, peak: float, **host) -> dict[str, float]:
    return {"gpu_used": used * GIB, "gpu_reserved": reserved * GIB, "gpu_peak": peak * GIB, **HOST, **host}


class Trainer:
    def __init__(self, *answers):
        self.answers = iter(answers)

    def memory(self):
        return next(self.answers)


def test_a_phase_needs_what_is_used_with_our_allocator_at_its_peak():
    """40 GiB used, 30 of them kept by the allocator, which never needed more than 22: the phase needs 32."""
    gauge = Gauge(Trainer([rank(40, 30, 22), rank(38, 10, 9, host_used=9.0 * GIB)]))
    gauge.read("train")
    assert gauge.found == {
        "memory/train_gib": 37.0,
        "memory/train_used_gib": 40.0,
        "memory/host_used_gib": 9.0,
        "memory/host_parked_gib": 0.5,
    }


def test_a_phase_that_comes_twice_in_a_step_keeps_its_largest():
    gauge = Gauge(Trainer([rank(40, 0, 0)], [rank(30, 0, 0)]))
    gauge.read("sync")
    gauge.read("sync")
    assert gauge.found["memory/sync_gib"] == 40.0


def test_without_a_gpu_there_is_host_memory_alone():
    gauge = Gauge(Trainer([HOST]))
    gauge.read("generate")
    assert set(gauge.found) == {"memory/host_used_gib", "memory/host_parked_gib"}


def test_every_phase_has_its_metrics_and_its_place_in_a_plan():
    gauge = Gauge(Trainer(*[[rank(1, 0, 0)]] * len(PHASES)))
    for phase in PHASES:
        gauge.read(phase)
    check_names(gauge.found)
    assert set(PLANNED) <= set(PHASES)


@pytest.mark.parametrize("words", [[], ["trainer.offload=true", "rollout.offload=true"]])
def test_the_plan_and_what_came_of_it(words):
    plan = load_plan(["+experiment=qwen3_grpo", *words]).memory
    assert plan is not None
    rows = [
        {"memory/train_gib": 50.0, "memory/sync_gib": 30.0},
        {"memory/train_gib": 52.0, "memory/generate_gib": 60.0},
    ]
    found = against(plan, rows)
    assert {phase: values["measured"] for phase, values in found.items()} == {
        "train": 52.0,
        "wake-up" if words else "sync": 30.0,
        "rollout": 60.0,
    }
    by_name = {phase.phase: round(phase.total_bytes / GIB, 2) for phase in plan.phases}
    assert all(values["planned"] == by_name[phase] for phase, values in found.items())
    assert against(None, rows) == {}
