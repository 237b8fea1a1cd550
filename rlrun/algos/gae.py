"""Generalized advantage estimation over samples of different lengths, in one pass of matrix products (numpy).

    delta_k = r_k + gamma V_{k+1} - V_k        A_k = delta_k + gamma lambda A_{k+1}        return_k = A_k + V_k

with V = A = 0 behind the end (Schulman et al. 2015, arXiv 1506.02438). k counts the tokens that the policy produced:
what others wrote in between (tools, users) is no action, has no value, and neither discounts nor receives anything. So
after a turn's last token comes the next turn's first one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCK = 32
"""Tokens that one row of the matrix product sums up. Any size gives the same result."""

DISTANCE = np.arange(BLOCK)[:, None] - np.arange(BLOCK)


def gae(
    rewards: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    loss_masks: Sequence[np.ndarray],
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(advantages, returns): n arrays [T_i] float32 each, 0 off the mask. rewards, values and loss_masks: n arrays
    [T_i]; values[t] is what the critic says before token t, and rewards[t] what that token earns."""
    produced = [_produced(mask) for mask in loss_masks]
    held = [np.asarray(v)[p] for v, p in zip(values, produced, strict=True)]
    lengths = np.array([len(v) for v in held], np.int64)
    firsts, rows = _rows_of(lengths)
    deltas = np.zeros((rows, BLOCK))
    flat = deltas.reshape(-1)
    for first, value, reward, where in zip(firsts, held, rewards, produced, strict=True):
        delta = flat[first * BLOCK : first * BLOCK + len(value)]
        exact = value.astype(np.float64)
        delta[:] = np.asarray(reward)[where]
        delta -= exact
        delta[:-1] += exact[1:] if gamma == 1 else gamma * exact[1:]
    sums = _discounted_sums(deltas, lengths, gamma * gae_lambda).reshape(-1)
    advantages, returns = [], []
    for first, value, where, mask in zip(firsts, held, produced, loss_masks, strict=True):
        sum_ = sums[first * BLOCK : first * BLOCK + len(value)]
        advantage, return_ = np.zeros(len(mask), np.float32), np.zeros(len(mask), np.float32)
        advantage[where] = sum_
        sum_ += value
        return_[where] = sum_
        advantages.append(advantage)
        returns.append(return_)
    return advantages, returns


def _produced(mask: np.ndarray) -> slice | np.ndarray:
    """Where the mask is set: a slice when that is one run, as in a single turn."""
    chosen = np.asarray(mask) != 0
    first, behind = int(chosen.argmax()), len(chosen) - int(chosen[::-1].argmax())
    return slice(first, behind) if np.count_nonzero(chosen) == behind - first else np.flatnonzero(chosen)


def _rows_of(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    """The first row of each sequence when every one fills whole rows of BLOCK numbers, and the number of rows."""
    rows = -(-lengths // BLOCK)
    return np.cumsum(rows) - rows, int(rows.sum())


def _discounted_sums(x: np.ndarray, lengths: np.ndarray, c: float) -> np.ndarray:
    """y_k = x_k + c y_{k+1} within each sequence. x [rows, BLOCK]: sequences one after the other, padded with zeros to
    whole rows. 0 <= c <= 1, so that no power of it overflows.

    Within a row this is one product with the triangle of c's powers. What a row hands to the one before is its first
    y, and those of a sequence's rows obey the same recurrence with c^BLOCK: the same problem, BLOCK times smaller.
    """
    powers = c ** np.arange(BLOCK + 1)
    triangle = np.where(DISTANCE >= 0, powers[np.abs(DISTANCE)], 0.0)
    counts = -(-lengths // BLOCK)
    if counts.max(initial=0) > 1:
        firsts, rows = _rows_of(counts)
        starts = np.cumsum(counts) - counts
        heads = x @ triangle[:, 0]
        smaller = np.zeros((rows, BLOCK))
        flat = smaller.reshape(-1)
        for start, first, count in zip(starts, firsts, counts, strict=True):
            flat[first * BLOCK : first * BLOCK + count] = heads[start : start + count]
        first_y = _discounted_sums(smaller, counts, float(powers[BLOCK])).reshape(-1)
        for start, first, count in zip(starts, firsts, counts, strict=True):
            if count > 1:  # handed over in the row's last place, from where the triangle spreads it
                x[start : start + count - 1, -1] += c * first_y[first * BLOCK + 1 : first * BLOCK + count]
    return x @ triangle


def token_rewards(
    rewards: np.ndarray,
    loss_masks: Sequence[np.ndarray],
    penalties: Sequence[np.ndarray] | None,
) -> list[np.ndarray]:
    """n arrays [T_i]: -penalty on every token of the policy, plus the sample's reward [n] on the last one. `penalties`
    is kl_reward_coef times each token's KL to the reference, None without one. Both advantages and returns are made of
    these, so that the critic learns to predict what the policy is paid."""
    paid = []
    for i, mask in enumerate(loss_masks):
        token = np.zeros(len(mask)) if penalties is None else -np.asarray(penalties[i], np.float64) * (mask > 0)
        places = np.flatnonzero(mask)
        if len(places):
            token[places[-1]] += rewards[i]
        paid.append(token)
    return paid
