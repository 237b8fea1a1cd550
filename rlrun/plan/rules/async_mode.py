"""How far generation may run ahead: what each mode needs, and which keys it reads."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.batch import steps_per_rollout
from rlrun.plan.context import Context, supervised
from rlrun.plan.rules.algo import inactive

MODE = "async_mode"
NAME, STALENESS, INTERVAL = f"{MODE}.name", f"{MODE}.max_staleness", f"{MODE}.weight_sync_interval"
IN_FLIGHT, PAUSE, PARTIAL = f"{MODE}.max_in_flight_groups", f"{MODE}.pause_mode", f"{MODE}.partial_rollout"


def capacity_groups(max_staleness: int, interval: int, prompts_per_rollout: int) -> int:
    """Groups that may be in flight or waiting to train, so that none is too old when its turn comes.

    With b groups a step, a group that is n-th in line trains n / b steps later. Weights are up to interval - 1 steps
    old when it is drawn, which leaves it max_staleness - (interval - 1) steps, and the step under way.
    """
    return max(0, max_staleness - interval + 2) * prompts_per_rollout


def staleness(c: Context) -> Iterator[Problem]:
    a = c.config.async_mode
    least, most = {"sync": (0, 0), "one_step": (1, 1), "fully_async": (1, None)}[a.name]
    if a.max_staleness < least or (most is not None and a.max_staleness > most):
        why = {
            "sync": "every sample is trained on by the weights that drew it",
            "one_step": "every sample but the first step's is one version old",
            "fully_async": "generation that never waits runs ahead by a version at least",
        }[a.name]
        summary = f"max_staleness {a.max_staleness} does not belong to {a.name}: {why}"
        others = {"sync": "one_step or fully_async", "one_step": "fully_async", "fully_async": "sync"}[a.name]
        hint = f"set {STALENESS} to {least}, or choose async_mode={others}"
        yield c.problem("staleness-of-other-mode", summary, STALENESS, NAME, hint=hint)


def mode_keys(c: Context) -> Iterator[Problem]:
    """Keys that the mode does not read, or cannot do without."""
    a = c.config.async_mode
    if a.name != "fully_async":
        why = "nothing runs while weights arrive, and a rollout is drawn as a whole"
        for key in (IN_FLIGHT, PAUSE, PARTIAL, INTERVAL):
            if c.changed(key):
                yield inactive(c, key, f"has no part in {a.name}: {why}", NAME)
        return
    if a.pause_mode is None:
        summary = "fully_async has to know what becomes of running requests while weights arrive"
        yield c.problem("missing-value", summary, PAUSE, NAME, hint=f"set {PAUSE} to abort, retract or in_place")
    elif a.partial_rollout and a.pause_mode != "abort":
        yield inactive(c, PARTIAL, f"goes on from aborted samples, and {a.pause_mode} aborts none", PAUSE)
    if c.changed("rollout.max_concurrent_groups"):
        why = f"bounds one rollout, and fully_async has no rollouts: {IN_FLIGHT} is its bound"
        yield inactive(c, "rollout.max_concurrent_groups", why, NAME)


def own_gpus(c: Context) -> Iterator[Problem]:
    name, placement = c.config.async_mode.name, c.config.placement
    if name != "sync" and placement.mode == "colocated":
        summary = f"{name} generates while it trains, and colocated engines and trainer take turns on the same GPUs"
        hint = "set placement.mode to disaggregated with weight_sync.transport distributed, or choose async_mode=sync"
        yield c.problem("async-colocated", summary, NAME, "placement.mode", hint=hint)


def one_optimizer_step(c: Context) -> Iterator[Problem]:
    """Each further optimizer step of a rollout makes its samples older than max_staleness counts."""
    a, algo = c.config.async_mode, c.config.algo
    steps = steps_per_rollout(c.config)
    if a.name != "sync" and steps > 1 and not supervised(algo):  # rules/sft.py refuses every mode but sync
        summary = (
            f"{steps} optimizer steps a rollout make its last samples {steps - 1} updates older than max_staleness "
            f"{a.max_staleness} says"
        )
        keys = ("algo.groups_per_step", "algo.prompts_per_rollout", NAME)
        hint = f"set algo.groups_per_step to {algo.prompts_per_rollout}, or choose async_mode=sync"
        yield c.problem("async-optimizer-steps", summary, *keys, hint=hint)


def interval(c: Context) -> Iterator[Problem]:
    a = c.config.async_mode
    if a.name == "fully_async" and a.weight_sync_interval > max(1, a.max_staleness):
        summary = (
            f"with a weight sync every {a.weight_sync_interval} steps samples are up to {a.weight_sync_interval - 1} "
            f"versions old when they are drawn, and max_staleness {a.max_staleness} leaves no step to run ahead"
        )
        hint = f"set {INTERVAL} to {max(1, a.max_staleness)}, or {STALENESS} to {a.weight_sync_interval}"
        yield c.problem("sync-interval-too-long", summary, INTERVAL, STALENESS, hint=hint)


def in_flight(c: Context) -> Iterator[Problem]:
    """The bound on groups in flight against what staleness allows, and against the engines that need work."""
    a, algo, r = c.config.async_mode, c.config.algo, c.config.placement.rollout
    groups = a.max_in_flight_groups
    if a.name != "fully_async" or groups is None:
        return
    most = capacity_groups(a.max_staleness, a.weight_sync_interval, algo.prompts_per_rollout)
    if 0 < most < groups:
        summary = (
            f"max_staleness {a.max_staleness} with {algo.prompts_per_rollout} groups a step admits {most} groups, "
            f"so {groups} would never be in flight"
        )
        keys = (IN_FLIGHT, STALENESS, "algo.prompts_per_rollout")
        hint = f"set {IN_FLIGHT} to {most} or less, or raise {STALENESS}"
        yield c.problem("in-flight-above-capacity", summary, *keys, hint=hint)
    engines = r.gpus // r.gpus_per_engine
    if groups * algo.group_size < engines:
        summary = f"{groups} groups in flight are {groups * algo.group_size} samples for {engines} engines"
        keys = (IN_FLIGHT, "algo.group_size", "placement.rollout.gpus")
        hint = f"set {IN_FLIGHT} to {-(-engines // algo.group_size)} or more"
        yield c.problem("too-few-samples", summary, *keys, hint=hint)


def repeatable(c: Context) -> Iterator[Problem]:
    if c.config.async_mode.name == "fully_async" and c.config.rollout.seeded:
        summary = "in fully_async the clock decides which weights draw a sample, so seeds do not repeat a run"
        hint = "set rollout.seeded to false, or choose async_mode=one_step"
        yield c.problem("seeded-not-repeatable", summary, "rollout.seeded", NAME, hint=hint)


RULES = (staleness, mode_keys, own_gpus, one_optimizer_step, interval, in_flight, repeatable)
