"""The weight of each token in the loss, fixed once for a whole optimizer step (numpy).

Denominators are those of the whole step, over all data-parallel ranks and before anything is packed, so that a loss
does not depend on how the step is cut. A rollout is one execution of an agent; it may have several samples, its
siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Masks = Sequence[np.ndarray]


def token_mean(masks: Masks, rollout_of: np.ndarray, constant: int | None) -> list[np.ndarray]:
    """mask / (ones in all masks): every token the policy produced weighs the same. All zero if nothing counts."""
    total = sum(int(mask.sum()) for mask in masks)
    return [_over(mask, total) for mask in masks]


def sequence_mean(masks: Masks, rollout_of: np.ndarray, constant: int | None) -> list[np.ndarray]:
    """mask / (ones in its own mask) / n: every sample weighs the same.

    A fully masked sample still counts in n. n is the size of the step as planned; if it shrank when an engine aborted
    a sample, the failure would raise the learning rate of the others.
    """
    n = len(masks)
    return [_over(mask, int(mask.sum()) * n) for mask in masks]


def rollout_mean(masks: Masks, rollout_of: np.ndarray, constant: int | None) -> list[np.ndarray]:
    """mask / (ones in the masks of all its siblings) / (number of rollouts): every rollout weighs the same, however
    many samples it came back as. A fully masked rollout still counts."""
    _, rollout = np.unique(rollout_of, return_inverse=True)
    sizes = np.bincount(rollout, [int(mask.sum()) for mask in masks]).astype(np.int64)
    return [_over(mask, int(sizes[r]) * len(sizes)) for mask, r in zip(masks, rollout, strict=True)]


def constant(masks: Masks, rollout_of: np.ndarray, constant: int | None) -> list[np.ndarray]:
    """mask / constant / (number of rollouts): the sum of a rollout's tokens over a fixed number, so that a token's
    weight depends on no length at all (Liu et al. 2025, Dr.GRPO)."""
    assert constant is not None
    num_rollouts = len(np.unique(rollout_of))
    return [_over(mask, constant * num_rollouts) for mask in masks]


def loss_weights(
    loss_masks: Masks, aggregation: str, rollout_of: np.ndarray | None = None, constant: int | None = None
) -> list[np.ndarray]:
    """Weights w of all samples of one optimizer step: n arrays [T_i] float32, 0 where the mask is 0.

    `loss_masks`: n arrays [T_i] of 0 and 1, the samples of *all* data-parallel ranks. `aggregation` is a key of
    LOSS_WEIGHTS. `rollout_of` [n]: equal for siblings, None when every sample is a rollout of its own. `constant`:
    tokens, for the aggregation of that name.
    """
    if not loss_masks:
        return []
    rollouts = np.arange(len(loss_masks)) if rollout_of is None else np.asarray(rollout_of)
    assert len(rollouts) == len(loss_masks), (len(rollouts), len(loss_masks))
    return LOSS_WEIGHTS[aggregation](loss_masks, rollouts, constant)


def _over(mask: np.ndarray, denominator: int) -> np.ndarray:
    return np.asarray(mask, np.float32) / np.float32(max(denominator, 1))


LOSS_WEIGHTS: dict[str, Callable[[Masks, np.ndarray, int | None], list[np.ndarray]]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "rollout_mean": rollout_mean,
    "constant": constant,
}
