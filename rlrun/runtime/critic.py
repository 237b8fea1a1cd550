"""The critic's part of a step: values before the update, then its own optimizer steps, before the policy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.batching import make_token_batches, make_value_batches, scatter
from rlrun.data.types import Group, Sample
from rlrun.errors import RunFailed
from rlrun.runtime.learn import parts, schedule

if TYPE_CHECKING:
    from rlrun.runtime.loop import Run

MEANS = ("value_loss", "value_clip_fraction")


def values(run: Run, samples: Sequence[Sample]) -> list[np.ndarray]:
    """What the critic says [T_i] of every sample."""
    shares = schedule(run.plan, samples)
    batches = make_token_batches(samples, shares, 1.0)  # values know no temperature
    return scatter(run.trainer.values(batches), shares, [len(s.tokens) for s in samples])


def update(
    run: Run, groups: Sequence[Group], old_values: Sequence[np.ndarray], returns: Sequence[np.ndarray]
) -> dict[str, float]:
    """The critic's optimizer steps of one loop step, on the same samples and with the same weights as the policy's."""
    samples = [sample for group in groups for sample in group.samples]
    steps = [_optimizer_step(run, samples, old_values, returns, chosen) for chosen in parts(run.plan, groups)]
    metrics = {f"train/{name}": float(np.mean([s[name] for s in steps])) for name in MEANS}
    metrics["train/critic_grad_norm"] = float(np.mean([s["grad_norm"] for s in steps]))
    metrics["train/critic_lr"] = steps[-1]["lr"]
    return metrics | value_metrics(samples, old_values, returns)


def _optimizer_step(
    run: Run,
    samples: Sequence[Sample],
    old_values: Sequence[np.ndarray],
    returns: Sequence[np.ndarray],
    chosen: np.ndarray,
) -> dict[str, float]:
    """One step on the chosen samples; refuses to go on from a loss or gradient that is not a number."""
    part = [samples[i] for i in chosen]
    batches = make_value_batches(
        part,
        [old_values[i] for i in chosen],
        [returns[i] for i in chosen],
        schedule(run.plan, part),
        run.plan.algo.loss_aggregation,
    )
    found = run.trainer.value_step(batches).values
    for name in ("value_loss", "grad_norm"):
        if not math.isfinite(found[name]):
            raise RunFailed("training", f"the critic's {name} is {found[name]} in step {run.step + 1}")
    if not trains_policy(run):
        run.learned |= found["grad_norm"] > 0
    return found


def trains_policy(run: Run) -> bool:
    """Whether the policy takes part in the step that is being done."""
    return run.plan.critic is None or run.step >= run.plan.critic.critic_only_steps


def value_metrics(
    samples: Sequence[Sample], old_values: Sequence[np.ndarray], returns: Sequence[np.ndarray]
) -> dict[str, float]:
    """How well the critic foretold the returns of the tokens that the policy produced, before it learned from them.
    Explained variance is 1 - Var(return - value) / Var(return): 1 is perfect, 0 no better than a constant; also 0 where
    all returns are the same."""
    masks = [np.asarray(s.loss_mask) > 0 for s in samples]
    value = np.concatenate([np.asarray(v, np.float64)[m] for v, m in zip(old_values, masks, strict=True)])
    target = np.concatenate([np.asarray(r, np.float64)[m] for r, m in zip(returns, masks, strict=True)])
    if not value.size:
        return {"train/explained_variance": 0.0, "train/value_mean": 0.0, "train/return_mean": 0.0}
    spread = target.var()
    return {
        "train/explained_variance": float(1 - (target - value).var() / spread) if spread > 0 else 0.0,
        "train/value_mean": float(value.mean()),
        "train/return_mean": float(target.mean()),
    }
