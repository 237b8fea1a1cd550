"""What becomes of a rewarded group before it is learned from: rewards looked at once more, over-long samples, filters.

A rollout (one execution of an agent) has one reward, which all its samples carry. Everything here works on one group
and needs no other; none of it looks at log-probs or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlrun.data.types import Group, Sample
from rlrun.errors import RunFailed
from rlrun.plan.parts.sampling import OverlongPlan, SamplingPlan


@dataclass(frozen=True)
class Hooks:
    """The user's own functions, each of one group. None where there is none."""

    postprocess: Callable[[Group], list[float]] | None = None
    group_filter: Callable[[Group], bool] | None = None
    sample_filter: Callable[[Group], list[bool]] | None = None


DROPPED = ("zero_variance", "filter", "overlong", "stale")
"""Why a group was left out."""


def select(group: Group, plan: SamplingPlan, hooks: Hooks) -> str | None:
    """Prepares a group in place. None when it is kept, else the reason of DROPPED."""
    _one_reward_a_rollout(group, "the agent gave")
    if hooks.postprocess is not None:
        for sample, reward in zip(group.samples, hooks.postprocess(group), strict=True):
            sample.reward = reward
        _one_reward_a_rollout(group, "reward.postprocess gave")
    if not _overlong(group, plan.overlong):
        return "overlong"
    if plan.filter == "drop_zero_variance":
        if len({sample.reward for sample in group.samples}) < 2:
            return "zero_variance"
    elif hooks.group_filter is not None and not hooks.group_filter(group):
        return "filter"
    if hooks.sample_filter is not None:
        for sample, keep in zip(group.samples, hooks.sample_filter(group), strict=True):
            sample.removed |= not keep
    return None


def rollouts_of(samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    """The samples of each rollout of a group, in order of first occurrence."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.rollout_id, []).append(sample)
    return found


def _one_reward_a_rollout(group: Group, who: str) -> None:
    for rollout_id, samples in rollouts_of(group.samples).items():
        rewards = sorted({sample.reward for sample in samples})
        if len(rewards) > 1:
            shown = ", ".join(f"{reward:g}" for reward in rewards)
            summary = f"{who} the {len(samples)} samples of rollout {rollout_id} rewards that differ: {shown}"
            hint = "give every sample of a rollout the reward of the rollout"
            raise RunFailed("reward", f"prompt {group.prompt.prompt_id}: {summary}", hint)


def _overlong(group: Group, plan: OverlongPlan) -> bool:
    """False when too little is left of the group."""
    if plan.handling == "mask":
        for sample in group.samples:
            sample.removed |= is_cut(sample)
    elif plan.handling == "penalize":
        for samples in rollouts_of(group.samples).values():
            loss = max(overlong_penalty(s.response_length, plan) for s in samples)
            for sample in samples:
                sample.reward -= loss
    elif plan.handling == "drop":
        whole = [own for own in rollouts_of(group.samples).values() if not any(map(is_cut, own))]
        group.samples = [sample for own in whole for sample in own]
        return len(whole) >= 2
    return True


def is_cut(sample: Sample) -> bool:
    """Whether generation ended at the limit of tokens and not by itself."""
    return sample.finish_reason == "length"


def overlong_penalty(length: int, plan: OverlongPlan) -> float:
    """0 up to `max_tokens - buffer_tokens`, then linearly to `penalty` at max_tokens (Yu et al. 2025, DAPO)."""
    over = length - (plan.max_tokens - plan.buffer_tokens)
    return plan.penalty * min(1.0, max(0, over) / plan.buffer_tokens)
