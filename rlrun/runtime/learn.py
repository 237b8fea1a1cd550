"""From rewarded groups to new weights: log-probs, advantages, one batch a rank, optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.algos.advantages import Estimator, Scored, estimator, token_advantages, zero_variance_groups
from rlrun.algos.gae import gae, token_rewards
from rlrun.algos.kl import kl_estimate
from rlrun.data.batching import make_token_batches, make_train_batches, scatter
from rlrun.data.schedule import cut_steps, schedule_step
from rlrun.data.types import Group, Sample
from rlrun.errors import RunFailed
from rlrun.plan.types import AlgoPlan, RunPlan

if TYPE_CHECKING:
    from rlrun.runtime.loop import Run

MEANS = (
    "loss",
    "pg_loss",
    "kl_loss",
    "entropy",
    "pg_clip_fraction",
    "ppo_kl",
    "grad_norm",
    "importance_weight",
    "importance_dropped",
    "opsm_dropped",
)
"""Metrics of an optimizer step that are averaged over the steps of a rollout."""


@dataclass(frozen=True)
class Scores:
    """Log-probs and values [T_i] of every sample of a rollout, before the update. None where the algorithm needs
    none."""

    old: list[np.ndarray] | None
    ref: list[np.ndarray] | None
    teacher: list[np.ndarray] | None
    values: list[np.ndarray] | None = None


@dataclass(frozen=True)
class Credit:
    """What the tokens of a rollout are worth: [T_i] of every sample. `returns` are what a critic should have said, None
    without one."""

    advantages: list[np.ndarray]
    returns: list[np.ndarray] | None = None


def logprobs(run: Run, samples: list[Sample]) -> Scores:
    """The forward passes that the plan asks for; the old log-probs may be the engine's."""
    algo = run.plan.algo
    shares = schedule(run.plan, samples)
    batches = make_token_batches(samples, shares, run.plan.rollout.temperature)
    lengths = [len(s.tokens) for s in samples]

    def forward(model: str) -> list[np.ndarray]:
        return scatter(run.trainer.logprobs(batches, model), shares, lengths)

    old = {
        "trainer": lambda: forward("policy"),
        "rollout": lambda: [s.rollout_logprobs for s in samples],
        "current": lambda: None,
    }[algo.old_logprobs]()
    return Scores(
        old=old,
        ref=forward("reference") if algo.uses_reference else None,
        teacher=forward("teacher") if algo.teacher is not None else None,
    )


def schedule(plan: RunPlan, samples: Sequence[Sample]) -> Any:
    return schedule_step(
        [len(s.tokens) for s in samples],
        plan.train.dp,
        batching=plan.train.batching,
        max_tokens_per_gpu=plan.train.max_tokens_per_gpu,
        micro_batch_size=plan.train.micro_batch_size,
        attention_share=plan.train.attention_share,
        cp=plan.train.cp,
    )


def groups_of(groups: Sequence[Group]) -> np.ndarray:
    """[n]: the group of each sample. By position, not by prompt_id: at the end of an epoch a prompt may be drawn twice
    in one step."""
    return np.repeat(np.arange(len(groups)), [len(g.samples) for g in groups])


def rollouts(samples: Sequence[Sample], group_of: np.ndarray) -> np.ndarray:
    """[n] integers, equal for siblings: a rollout_id is unique only within its group."""
    ids = np.array([s.rollout_id for s in samples], np.int64)
    return group_of * (ids.max(initial=0) + 1) + ids


def parts(plan: RunPlan, groups: Sequence[Group]) -> list[np.ndarray]:
    """The samples of each optimizer step of a rollout: whole groups, in rollout order, groups_per_step at a time."""
    return cut_steps(groups_of(groups), None if plan.batch.variable else plan.batch.groups_per_step)


def zero_variance(groups: Sequence[Group]) -> float:
    """Share of the groups whose rewards are all the same. Siblings have one reward between them."""
    samples, group_of = [sample for group in groups for sample in group.samples], groups_of(groups)
    _, first = np.unique(rollouts(samples, group_of), return_index=True)
    return zero_variance_groups(np.array([s.reward for s in samples])[first], group_of[first]) / len(groups)


def update(run: Run, groups: list[Group], scores: Scores, given: Credit) -> dict[str, float]:
    """The policy's optimizer steps of one loop step."""
    plan, advantages = run.plan, given.advantages
    samples = [sample for group in groups for sample in group.samples]
    rollout_of = rollouts(samples, groups_of(groups))
    steps = [optimizer_step(run, samples, advantages, scores, chosen, rollout_of) for chosen in parts(plan, groups)]
    metrics = {f"train/{name}": float(np.mean([s[name] for s in steps])) for name in MEANS if name in steps[0]}
    metrics["train/lr"] = steps[-1]["lr"]
    metrics["train/ratio_max"] = max(s["ratio_max"] for s in steps)
    metrics["train/tokens"] = float(sum(s.loss_mask.sum() for s in samples if not s.removed))
    metrics["train/optimizer_steps"] = float(run.optimizer_steps)
    return metrics | _advantage_metrics(advantages, samples) | _gap_metrics(plan.algo, steps)


def credit(algo: AlgoPlan, samples: Sequence[Sample], group_of: np.ndarray, scores: Scores) -> Credit:
    """Whatever is normalised is normalised over all samples of the rollout."""
    masks = [np.asarray(s.loss_mask, np.float32) for s in samples]
    penalties = distillation = None
    if algo.kl_reward_coef > 0:
        assert scores.old is not None
        assert scores.ref is not None
        penalties = [
            algo.kl_reward_coef * kl_estimate(old * mask, ref * mask, algo.loss.kl_estimator)
            for old, ref, mask in zip(scores.old, scores.ref, masks, strict=True)
        ]
    if scores.teacher is not None:
        assert scores.old is not None
        pairs = zip(scores.old, scores.teacher, masks, strict=True)
        distillation = [algo.opd_coef * (old - teacher) * mask for old, teacher, mask in pairs]
    scored = Scored(
        rewards=np.array([s.reward for s in samples]),
        groups=group_of,
        rollouts=rollouts(samples, group_of),
        masks=masks,
        penalties=penalties,
    )
    returns = None
    if scores.values is not None:
        paid = token_rewards(scored.rewards, masks, penalties)
        estimates, returns = gae(paid, scores.values, masks, gamma=algo.gamma, gae_lambda=algo.gae_lambda)
        chosen: Estimator = lambda _: estimates  # noqa: E731
    else:
        chosen = estimator(algo.advantage, algo.normalize_by_std, algo.gamma)
    advantages = token_advantages(scored, chosen, whiten=algo.whiten_advantages, distillation=distillation)
    return Credit(advantages, returns)


def _advantage_metrics(advantages: Sequence[np.ndarray], samples: Sequence[Sample]) -> dict[str, float]:
    pairs = zip(advantages, samples, strict=True)
    counted = np.concatenate([np.zeros(0), *(np.abs(a[np.asarray(s.loss_mask) > 0]) for a, s in pairs)])
    return {"train/advantage_abs_mean": float(counted.mean()) if counted.size else 0.0}


def _gap_metrics(algo: AlgoPlan, steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean and largest |trainer before the update - engine| over the tokens that are trained on. Where the engine's own
    log-probs are the old ones, the first optimizer step alone still has the weights from before the update."""
    gap = "rollout_gap"
    if algo.old_logprobs == "rollout":
        gap, steps = "log_ratio_abs", steps[:1]
    tokens = sum(s["num_tokens"] for s in steps)
    return {
        "train/train_rollout_logprob_abs_diff": sum(s[f"{gap}_sum"] for s in steps) / max(tokens, 1),
        "train/train_rollout_logprob_abs_diff_max": max(s[f"{gap}_max"] for s in steps),
    }


def optimizer_step(
    run: Run,
    samples: Sequence[Sample],
    advantages: Sequence[np.ndarray],
    scores: Scores,
    chosen: np.ndarray,
    rollout_of: np.ndarray,
) -> dict[str, float]:
    """One step on the chosen samples; refuses to go on from a loss or gradient that is not a number."""
    part = [samples[i] for i in chosen]
    shares = schedule(run.plan, part)
    in_loss = scores.ref if run.plan.algo.loss.kl_coef > 0 else None
    batches = make_train_batches(
        part,
        [advantages[i] for i in chosen],
        [scores.old[i] for i in chosen] if scores.old is not None else None,
        [in_loss[i] for i in chosen] if in_loss is not None else None,
        shares,
        run.plan.algo.loss_aggregation,
        run.plan.rollout.temperature,
        rollout_of=rollout_of[chosen],
        loss_constant=run.plan.algo.loss_constant,
    )
    values = run.trainer.train_step(batches).values
    for name in ("loss", "grad_norm"):
        if not math.isfinite(values[name]):
            raise RunFailed("training", f"{name} is {values[name]} in optimizer step {run.optimizer_steps + 1}")
    run.optimizer_steps += 1
    run.learned |= values["grad_norm"] > 0
    return values
