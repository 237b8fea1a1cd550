"""Advantage estimators: one number a sample in, one number a sample out (numpy).

An advantage belongs to a sample; it is spread over the sample's tokens only when batches are made, so nothing of size
[samples, tokens] exists here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STD_EPS = 1e-6


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


ADVANTAGES: dict[str, Callable[..., np.ndarray]] = {"grpo": grpo}
