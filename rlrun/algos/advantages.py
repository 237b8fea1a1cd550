"""Advantage estimators (numpy): the rewards of a rollout in, how much better than expected each sample was out.

Where an advantage belongs to a whole sample it stays one number a sample, and is spread over tokens only when batches
are made. `token_advantages` is the whole way: estimator, distillation, whitening.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

STD_EPS = 1e-6
WHITEN_EPS = 1e-8
BLOCK = 128
"""Tokens that `discounted` does at once."""


@dataclass(frozen=True)
class Scored:
    """The n samples of one rollout, all data-parallel ranks together.

    rewards [n] finite; groups [n] integers, equal for the samples of one prompt; rollouts [n] integers, equal for the
    samples of one execution, which have one reward between them and count once in their group; masks n arrays [T_i], 1
    on the tokens that are trained on; penalties (None without a KL in the rewards) n arrays [T_i], kl_reward_coef times
    the KL of each token, 0 off the mask.
    """

    rewards: np.ndarray
    groups: np.ndarray
    rollouts: np.ndarray
    masks: Sequence[np.ndarray]
    penalties: Sequence[np.ndarray] | None = None


Advantages = np.ndarray | list[np.ndarray]
"""[n], the same on every token of a sample; or n arrays [T_i]."""
Estimator = Callable[[Scored], Advantages]


def token_advantages(
    scored: Scored,
    estimator: Estimator,
    *,
    whiten: bool = False,
    distillation: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """n arrays [T_i] float32, 0 off the mask: estimator, minus `distillation` by token, whitened over all tokens."""
    values = estimator(scored)
    tokens = spread(values, scored.masks) if isinstance(values, np.ndarray) else values
    if distillation is not None:
        pairs = zip(tokens, distillation, scored.masks, strict=True)
        tokens = [(np.asarray(a - d) * m).astype(np.float32) for a, d, m in pairs]
    return whitened(tokens, scored.masks) if whiten else list(tokens)


def spread(values: np.ndarray, masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One number a sample -> n arrays [T_i] float32, 0 off the mask."""
    assert len(values) == len(masks), (len(values), len(masks))
    return [np.float32(v) * np.asarray(m, np.float32) for v, m in zip(values, masks, strict=True)]


def whitened(values: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The masked values of all samples shifted and scaled to mean 0 and unbiased variance 1 (plus 1e-8); 0 elsewhere.
    All zero where fewer than two tokens count."""
    counted = [np.asarray(v, np.float64)[np.asarray(m) > 0] for v, m in zip(values, masks, strict=True)]
    flat = np.concatenate(counted) if counted else np.zeros(0)
    if flat.size < 2:
        return [np.zeros(len(m), np.float32) for m in masks]
    mean, scale = flat.mean(), 1 / np.sqrt(flat.var(ddof=1) + WHITEN_EPS)
    pairs = zip(values, masks, strict=True)
    return [np.where(np.asarray(m) > 0, (np.asarray(v, np.float64) - mean) * scale, 0).astype(np.float32)
            for v, m in pairs]  # fmt: skip


def grpo(rewards: np.ndarray, group_ids: np.ndarray, *, normalize_by_std: bool) -> np.ndarray:
    """[n] float32: each reward minus the mean of its group, over (standard deviation + 1e-6) if `normalize_by_std`.

    rewards [n] finite; group_ids [n] integers, equal for the samples of one group, in any order, groups of any size.
    The deviation is the unbiased one (n - 1), 0 for a group of one. Shao et al. 2024 (DeepSeekMath, section 4.1.2);
    without the division it is Dr.GRPO (Liu et al. 2025).
    """
    rewards, group, sizes, lowest, _ = _by_group(rewards, group_ids)
    # Measured from the group's lowest reward, so that equal rewards give exactly 0 whatever their size.
    height = rewards - lowest[group]
    centred = height - (np.bincount(group, height) / sizes)[group]
    if normalize_by_std:
        variance = np.bincount(group, centred * centred) / np.maximum(sizes - 1, 1)
        centred /= (np.sqrt(variance) + STD_EPS)[group]
    return centred.astype(np.float32)


def rloo(rewards: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """[n] float32: each reward minus the mean of the *other* rewards of its group; 0 for a group of one. Ahmadian et
    al. 2024 (REINFORCE leave-one-out): the group's own mean, times size / (size - 1)."""
    rewards, group, sizes, lowest, _ = _by_group(rewards, group_ids)
    height = rewards - lowest[group]
    centred = height - (np.bincount(group, height) / sizes)[group]
    return (centred * (sizes / np.maximum(sizes - 1, 1))[group]).astype(np.float32)


def reinforce_plus_plus(scored: Scored, gamma: float) -> list[np.ndarray]:
    """n arrays [T_i] float32: the discounted return from each token on (Hu 2025), of the rewards -penalty on every
    token and the sample's reward on its last one that counts. Whitening has to follow: there is no baseline.

    Every token from one to the next counts in the discount, also those that are not trained on. A sample that is masked
    throughout, such as an aborted one, has no token to reward: its advantages are 0.
    """
    returns = []
    for i, mask in enumerate(scored.masks):
        mask = np.asarray(mask, np.float64)
        rewards = -mask * scored.penalties[i] if scored.penalties is not None else np.zeros(len(mask))
        counted = np.flatnonzero(mask)
        if counted.size:
            rewards[counted[-1]] += scored.rewards[i]
        returns.append((discounted(rewards, gamma) * mask).astype(np.float32))
    return returns


def reinforce_plus_plus_baseline(scored: Scored) -> list[np.ndarray]:
    """n arrays [T_i] float32: reward minus the group's mean, minus the penalty of each token. Whitening has to follow:
    it takes the place of the group's deviation."""
    tokens = spread(_by_rollout(scored, functools.partial(grpo, normalize_by_std=False)), scored.masks)
    if scored.penalties is None:
        return tokens
    return [(a - np.asarray(m) * p).astype(np.float32)
            for a, m, p in zip(tokens, scored.masks, scored.penalties, strict=True)]  # fmt: skip


def discounted(values: np.ndarray, gamma: float) -> np.ndarray:
    """[T] float64: sum_k gamma^k values[t + k] for each t. Block by block, because numpy has no such scan."""
    backwards = np.asarray(values, np.float64)[::-1]
    if gamma == 1.0:
        return np.cumsum(backwards)[::-1]
    padded = np.zeros(-(-len(backwards) // BLOCK) * BLOCK)
    padded[: len(backwards)] = backwards
    age = np.arange(BLOCK)[:, None] - np.arange(BLOCK)[None]
    kernel = np.where(age >= 0, gamma ** np.maximum(age, 0), 0.0)
    blocks = padded.reshape(-1, BLOCK) @ kernel.T
    fade = gamma ** np.arange(1, BLOCK + 1)
    for before, block in itertools.pairwise(blocks):
        block += fade * before[-1]
    return blocks.reshape(-1)[: len(backwards)][::-1]


def zero_variance_groups(rewards: np.ndarray, group_ids: np.ndarray) -> int:
    """Groups whose rewards are all equal: they teach nothing. A group of one is such a group."""
    _, _, _, lowest, highest = _by_group(rewards, group_ids)
    return int((lowest == highest).sum())


def _by_group(rewards: np.ndarray, group_ids: np.ndarray) -> tuple[np.ndarray, ...]:
    """rewards as [n] float64, dense group numbers [n], then for each of the g groups: size, lowest, highest reward."""
    rewards = np.asarray(rewards, np.float64)
    group_ids = np.asarray(group_ids)
    assert rewards.shape == group_ids.shape == (rewards.size,), (rewards.shape, group_ids.shape)
    assert np.isfinite(rewards).all(), "a reward is not finite"
    if not rewards.size:
        empty = np.zeros(0)
        return rewards, np.zeros(0, np.int64), empty, empty, empty
    _, group, sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
    by_group = rewards[np.argsort(group, kind="stable")]
    starts = np.cumsum(sizes) - sizes
    return rewards, group, sizes, np.minimum.reduceat(by_group, starts), np.maximum.reduceat(by_group, starts)


def _by_rollout(
    scored: Scored, compare: Callable[[np.ndarray, np.ndarray], np.ndarray], penalised: bool = False
) -> np.ndarray:
    """[n]: `compare(rewards, groups)` of the rollouts, each once, handed to all samples of the rollout; `penalised`
    first takes the penalties of all its tokens off its reward."""
    rewards = np.asarray(scored.rewards, np.float64)
    if (np.diff(scored.rollouts) > 0).all():  # each a sample of its own, as agents of one turn give them
        first = rollout = np.arange(len(rewards))
    else:
        _, first, rollout = np.unique(scored.rollouts, return_index=True, return_inverse=True)
    assert (rewards == rewards[first][rollout]).all(), "the samples of one rollout have different rewards"
    of_rollout = rewards[first]
    if penalised and scored.penalties is not None:
        totals = [float(np.dot(np.asarray(m, np.float64), p))
                  for m, p in zip(scored.masks, scored.penalties, strict=True)]  # fmt: skip
        of_rollout = of_rollout - np.bincount(rollout, totals, minlength=len(first))
    return compare(of_rollout, np.asarray(scored.groups)[first])[rollout]


def _grpo(scored: Scored, normalize_by_std: bool, gamma: float) -> Advantages:
    return _by_rollout(scored, functools.partial(grpo, normalize_by_std=normalize_by_std), penalised=True)


def _rloo(scored: Scored, normalize_by_std: bool, gamma: float) -> Advantages:
    return _by_rollout(scored, rloo, penalised=True)


def _reinforce_plus_plus(scored: Scored, normalize_by_std: bool, gamma: float) -> Advantages:
    return reinforce_plus_plus(scored, gamma)


def _reinforce_plus_plus_baseline(scored: Scored, normalize_by_std: bool, gamma: float) -> Advantages:
    return reinforce_plus_plus_baseline(scored)


ADVANTAGES: dict[str, Callable[..., Advantages]] = {
    "grpo": _grpo,
    "rloo": _rloo,
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _reinforce_plus_plus_baseline,
}
"""By the name in `algo.advantage`: f(scored, normalize_by_std, gamma)."""


def estimator(name: str, normalize_by_std: bool, gamma: float) -> Estimator:
    """One of ours, or the user's function at `package.module:name`, whose result is checked."""
    if name in ADVANTAGES:
        return functools.partial(ADVANTAGES[name], normalize_by_std=normalize_by_std, gamma=gamma)
    from rlrun.algos.custom import checked_estimator

    return checked_estimator(name)
