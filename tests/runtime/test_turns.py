"""What moves on and off the GPUs, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlrun.plan.build import load_plan
from rlrun.runtime.turns import Turns

PLAN = load_plan(["+experiment=quickstart"])
PARK_ALL, PARK_MOST = "park all", "park all but the weights"


class Recorded:
    """A trainer and engines that note what they are told, and refuse what they could not do."""

    def __init__(self):
        self.said: list[str] = []
        self.engines = {"weights", "KV cache"}

    def park(self, keep_weights):
        self.said.append(PARK_MOST if keep_weights else PARK_ALL)
        return 0.0

    def unpark(self):
        self.said.append("unpark")
        return 0.0

    def release(self):
        assert self.engines == {"weights", "KV cache"}, self.engines
        self.engines = set()
        self.said.append("release")

    def resume_weights(self):
        assert self.engines == set(), self.engines
        self.engines = {"weights"}
        self.said.append("resume weights")

    def resume_cache(self):
        assert self.engines == {"weights"}, self.engines
        self.engines |= {"KV cache"}
        self.said.append("resume KV cache")


def two_steps(trainer_offload: bool, rollout_offload: bool) -> list[str]:
    """The first push and a step, as the loop makes them."""
    plan = replace(
        PLAN,
        train=replace(PLAN.train, offload=trainer_offload),
        rollout=replace(PLAN.rollout, offload=rollout_offload),
    )
    parts = Recorded()
    if rollout_offload:
        parts.engines = set()  # as a run starts
    turns = Turns(plan, parts, parts)
    for step in (0, 1):
        if step:
            turns.train()
            turns.train()  # the GPUs are the trainer's already
        turns.make_room()
        parts.said.append("push")
        turns.leave()
        turns.serve()
    turns.train()  # for the last export
    assert turns.taken == (trainer_offload or rollout_offload)
    return parts.said


def test_weights_then_push_then_cache_and_never_both_whole():
    first = [PARK_MOST, "resume weights", "push", PARK_ALL, "resume KV cache"]
    assert two_steps(True, True) == [*first, "release", "unpark", *first, "release", "unpark"]


@pytest.mark.parametrize(
    ("trainer", "engines", "first", "turn"),
    [
        (True, False, [PARK_MOST, "push", PARK_ALL], ["unpark"]),
        (False, True, ["resume weights", "push", "resume KV cache"], ["release"]),
        (False, False, ["push"], []),
    ],
)
def test_a_side_that_stays_is_told_nothing(trainer, engines, first, turn):
    assert two_steps(trainer, engines) == [*first, *turn, *first, *turn]
