"""From rewarded groups to new weights: log-probs, advantages, one batch a rank, optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.algos.advantages import ADVANTAGES, zero_variance_groups
from rlrun.data.batching import make_token_batches, make_train_batches, scatter, schedule_step
from rlrun.data.types import Group, Sample
from rlrun.errors import RunFailed
from rlrun.plan.types import RunPlan

if TYPE_CHECKING:
    from rlrun.runtime.loop import Run

MEANS = ("loss", "pg_loss", "kl_loss", "entropy", "pg_clip_fraction", "ppo_kl", "grad_norm")
"""Metrics of an optimizer step that are averaged over the steps of a rollout."""


def logprobs(run: Run, samples: list[Sample]) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Old (and reference) log-probs [T_i] of every sample, by the trainer, before the update."""
    schedule = _schedule(run.plan, samples)
    batches = make_token_batches(samples, schedule, run.plan.rollout.temperature)
    lengths = [len(s.tokens) for s in samples]
    old = scatter(run.trainer.logprobs(batches, "policy"), schedule, lengths)
    ref = None
    if run.plan.algo.uses_reference:
        ref = scatter(run.trainer.logprobs(batches, "reference"), schedule, lengths)
    return old, ref


def _schedule(plan: RunPlan, samples: Sequence[Sample]) -> Any:
    return schedule_step(
        [len(s.tokens) for s in samples],
        plan.train.dp,
        batching=plan.train.batching,
        max_tokens_per_gpu=plan.train.max_tokens_per_gpu,
        micro_batch_size=plan.train.micro_batch_size,
    )


def update(run: Run, groups: list[Group], old: list[np.ndarray], ref: list[np.ndarray] | None) -> dict[str, float]:
    """The optimizer steps of one loop step: whole groups, in rollout order, groups_per_step at a time."""
    plan = run.plan
    samples = [sample for group in groups for sample in group.samples]
    # By position, not by prompt_id: at the end of an epoch a prompt may be drawn twice in one step.
    group_of = np.repeat(np.arange(len(groups)), [len(g.samples) for g in groups])
    rewards = np.array([s.reward for s in samples])
    advantages = ADVANTAGES[plan.algo.advantage](rewards, group_of, normalize_by_std=plan.algo.normalize_by_std)
    steps: list[dict[str, float]] = []
    for first in range(0, len(groups), plan.batch.groups_per_step):
        chosen = np.flatnonzero((group_of >= first) & (group_of < first + plan.batch.groups_per_step))
        steps.append(_optimizer_step(run, samples, advantages, old, ref, chosen))
    metrics = {f"train/{name}": float(np.mean([s[name] for s in steps])) for name in MEANS if name in steps[0]}
    metrics["train/lr"] = steps[-1]["lr"]
    metrics["train/ratio_max"] = max(s["ratio_max"] for s in steps)
    metrics["train/tokens"] = float(sum(s.loss_mask.sum() for s in samples))
    metrics["train/optimizer_steps"] = float(run.optimizer_steps)
    metrics["rollout/zero_variance_groups"] = zero_variance_groups(rewards, group_of) / len(groups)
    return metrics


def _optimizer_step(
    run: Run,
    samples: Sequence[Sample],
    advantages: np.ndarray,
    old: Sequence[np.ndarray],
    ref: Sequence[np.ndarray] | None,
    chosen: np.ndarray,
) -> dict[str, float]:
    """One step on the chosen samples; refuses to go on from a loss or gradient that is not a number."""
    part = [samples[i] for i in chosen]
    schedule = _schedule(run.plan, part)
    batches = make_train_batches(
        part,
        advantages[chosen],
        [old[i] for i in chosen],
        [ref[i] for i in chosen] if ref is not None else None,
        schedule,
        run.plan.algo.loss_aggregation,
        run.plan.rollout.temperature,
    )
    values = run.trainer.train_step(batches).values
    for name in ("loss", "grad_norm"):
        if not math.isfinite(values[name]):
            raise RunFailed("training", f"{name} is {values[name]} in optimizer step {run.optimizer_steps + 1}")
    run.optimizer_steps += 1
    run.learned |= values["grad_norm"] > 0
    return values
