"""The weight of each token in the loss, fixed once for a whole optimizer step (numpy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def token_mean(loss_masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """mask / (ones in all masks): every token the policy produced weighs the same. All zero if nothing counts."""
    total = sum(int(mask.sum()) for mask in loss_masks)
    return [_over(mask, total) for mask in loss_masks]


def sequence_mean(loss_masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """mask / (ones in its own mask) / n: every sample weighs the same.

    A fully masked sample still counts in n. n is the size of the step as planned; if it shrank when an engine aborted
    a sample, the failure would raise the learning rate of the others.
    """
    n = len(loss_masks)
    return [_over(mask, int(mask.sum()) * n) for mask in loss_masks]


def loss_weights(loss_masks: Sequence[np.ndarray], aggregation: str) -> list[np.ndarray]:
    """Weights w of all samples of one optimizer step: n arrays [T_i] float32, 0 where the mask is 0.

    `loss_masks`: n arrays [T_i] of 0 and 1, the samples of *all* data-parallel ranks, because the denominators are
    those of the whole step. `aggregation` is a key of LOSS_WEIGHTS.
    """
    return LOSS_WEIGHTS[aggregation](loss_masks)


def _over(mask: np.ndarray, denominator: int) -> np.ndarray:
    return np.asarray(mask, np.float32) / np.float32(max(denominator, 1))


LOSS_WEIGHTS: dict[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
}
