"""Deadlines that even the estimate misses, and lengths that it is told. cuda only."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.batch import steps_per_rollout
from rlrun.plan.context import Context
from rlrun.plan.decide.time import time_plan, work_of

EXPECTED = "rollout.expected_response_tokens"


def expected_length(c: Context) -> Iterator[Problem]:
    r = c.config.rollout
    if r.expected_response_tokens is not None and r.expected_response_tokens > r.max_response_tokens:
        summary = (
            f"responses end at {r.max_response_tokens} tokens, and cannot have {r.expected_response_tokens} on average"
        )
        hint = f"set {EXPECTED} to {r.max_response_tokens} or less"
        yield c.problem("expected-length-above-limit", summary, EXPECTED, "rollout.max_response_tokens", hint=hint)


def network(c: Context) -> Iterator[Problem]:
    p, key = c.config.placement, "placement.network_gb_per_s"
    if p.device == "cuda" and p.num_nodes == 1 and p.network_gb_per_s is not None:
        summary = f"{key} is the speed between nodes, and there is one"
        yield c.problem("inactive-key", summary, key, "placement.num_nodes", hint=f"set {key} to null")


def deadlines(c: Context) -> Iterator[Problem]:
    """A phase that takes longer than its deadline would end the run, after the GPUs were held for it."""
    r = c.config.rollout
    if r.expected_response_tokens is not None and r.expected_response_tokens > r.max_response_tokens:
        return
    time, work = time_plan(c), work_of(c)
    if time is None or work is None:
        return
    seconds = {phase.phase: phase.seconds for phase in time.phases}
    passes = max(1, work.forward_passes)  # each has the deadline for itself
    training = max(
        ("a pass of log-probs", seconds["logprob"] / passes),
        ("an optimizer step", max(seconds["train"], seconds.get("critic", 0.0)) / steps_per_rollout(c.config)),
        key=lambda operation: operation[1],
    )
    phases = (
        ("timeouts.generate_s", "a rollout", seconds["generate"]),
        ("timeouts.train_s", *training),
        ("timeouts.sync_s", "a weight sync", seconds["sync"]),
        ("rollout.request_timeout_s", "the longest sample", time.longest_request_s),
    )
    for key, what, needed in phases:
        deadline = c.value(key)
        if needed > deadline:
            summary = f"{what} takes about {needed:,.0f} s by the plan's estimate, and its deadline is {deadline:g} s"
            yield c.problem(
                "timeout-too-short", summary, key, hint=f"set {key} to {_generous(needed)}, or make it less"
            )


def _generous(seconds: float) -> int:
    """Three times as long, to two digits."""
    digits = 10 ** max(0, math.floor(math.log10(3 * seconds)) - 1)
    return math.ceil(3 * seconds / digits) * digits


RULES = (expected_length, network, deadlines)
