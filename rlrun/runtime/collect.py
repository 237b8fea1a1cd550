"""From prompts to the groups that a step learns from: generate, select, generate more where too few were kept.

Groups that were kept and not needed wait in `run.buffer`, and are the first of the next step, as long as the plan
allows samples of their age. Everything happens in the order in which prompts are drawn, never in that of their
completion, so a seeded run keeps the same groups every time.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from rlrun.agents.threads import in_thread
from rlrun.data.selection import DROPPED, Hooks, select
from rlrun.data.types import Group
from rlrun.errors import RunFailed

if TYPE_CHECKING:
    from rlrun.runtime.loop import Run


def collect(run: Run, step: int) -> tuple[list[Group], dict[str, float]]:
    """The groups of one step, and how they came about. Raises RunFailed when too few could be kept."""
    work = run.guard(_collect(run, step), f"generation of step {step}", run.plan.timeouts.generate_s)
    return run.runner.run(work)


async def _collect(run: Run, step: int) -> tuple[list[Group], dict[str, float]]:
    plan, sampling = run.plan, run.plan.sampling
    dropped: Counter[str] = Counter()
    kept = _from_buffer(run, step, dropped)
    # A step of variable size takes whatever is kept, as long as there is something.
    need = 1 if plan.batch.variable else plan.batch.prompts_per_rollout
    draw = plan.batch.prompts_per_rollout if plan.batch.variable else need - len(kept)
    position = tokens = rounds = 0
    while len(kept) < need and rounds <= sampling.max_refills:
        prompts = run.source.take(math.ceil(draw * sampling.over_sampling))
        assert run.agent is not None, "nothing is generated"
        groups = await run.agent.collect(prompts, step=step, first_position=position)
        _check_versions(run, groups, step)
        position, rounds = position + len(prompts), rounds + 1
        tokens += sum(sample.response_length for group in groups for sample in group.samples)
        for group, reason in zip(groups, await _select(run, groups), strict=True):
            if reason is None:
                kept.append(group)
            else:
                dropped[reason] += 1
        if not plan.batch.variable:
            draw = need - len(kept)
    if len(kept) < need:
        raise _too_few(run, step, len(kept), need, position, dropped)
    chosen, surplus = (kept, []) if plan.batch.variable else (kept[:need], kept[need:])
    run.buffer = surplus if sampling.surplus_staleness else []
    metrics = {"rollout/response_tokens_generated": float(tokens)}
    if sampling.drops:
        metrics |= {f"rollout/dropped_{reason}": float(dropped[reason]) for reason in DROPPED}
        metrics |= {
            "rollout/groups_generated": float(position),
            "rollout/groups_buffered": float(len(run.buffer)),
            "rollout/groups_discarded": float(len(surplus) - len(run.buffer)),
            "rollout/refills": float(max(rounds - 1, 0)),
        }
    return chosen, metrics


async def _select(run: Run, groups: list[Group]) -> list[str | None]:
    """Why each group is dropped, or None. The user's functions run beside the loop, which keeps the deadline."""

    def all_of_them() -> list[str | None]:
        return [select(group, run.plan.sampling, run.hooks) for group in groups]

    return all_of_them() if run.hooks == Hooks() else await in_thread(all_of_them)


def _from_buffer(run: Run, step: int, dropped: Counter[str]) -> list[Group]:
    """Groups that waited and are not too old for this step."""
    fresh = [g for g in run.buffer if _staleness([g], step) <= run.plan.sampling.surplus_staleness]
    dropped["stale"] += len(run.buffer) - len(fresh)
    return fresh


def _staleness(groups: list[Group], step: int) -> int:
    """Of the oldest sample: step n learns with the weights of version n - 1."""
    return max(step - 1 - sample.policy_version for group in groups for sample in group.samples)


def _check_versions(run: Run, groups: list[Group], step: int) -> None:
    if _staleness(groups, step) > run.plan.max_staleness:
        versions = sorted({sample.policy_version for group in groups for sample in group.samples})
        raise RunFailed("generation", f"samples of versions {versions} in step {step}, expected {step - 1}")


def _too_few(run: Run, step: int, kept: int, need: int, generated: int, dropped: Counter[str]) -> RunFailed:
    reasons = ", ".join(f"{count} for {reason}" for reason, count in sorted(dropped.items()) if count)
    rounds = run.plan.sampling.max_refills
    summary = (
        f"step {step} needs {need} prompt groups, and {kept} were kept after {rounds} refills: of {generated} "
        f"generated, {sum(dropped.values())} were dropped ({reasons or 'none'})"
    )
    hint = "raise dynamic_sampling.max_refills or over_sampling, take prompts that are neither too easy nor too hard"
    if not run.plan.batch.variable:
        hint += ", or set algo.groups_per_step to null to learn from as many groups as are kept"
    return RunFailed("generation", summary, hint)
