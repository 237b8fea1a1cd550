"""The critic's loss, one value a token (torch). As in `rlrun.algos.losses`, nothing here divides: every token comes
with its weight, whose denominators were fixed over the whole optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, loss_weights: Tensor, *, value_clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's share of the loss, and of the metrics.

    loss = sum_t w_t * max((clip(V_t, V_old_t - c, V_old_t + c) - R_t)^2, (V_t - R_t)^2), c = value_clip; without a clip
    sum_t w_t * (V_t - R_t)^2. No factor 1/2: it would only halve the learning rate that a user writes. The maximum is
    pessimistic: a value that has gone further than c from the one before the update gets no gradient that leads it
    further away still, and keeps the one that leads it back.

    All tensors are [N], one entry a token; only `values` carries a gradient. Where `loss_weights` is 0 the other values
    are never used, whatever they hold. Metrics are detached sums of w * x: value_loss; value_clip_fraction (tokens
    whose clipped branch is the larger, so that they have no gradient).
    """
    counts = loss_weights != 0

    def masked(tensor: Tensor) -> Tensor:
        return torch.where(counts, tensor, torch.zeros_like(tensor))

    values, old_values, returns = masked(values), masked(old_values), masked(returns)
    free = (values - returns).square()
    clipped = free
    if value_clip is not None:
        held = torch.clamp(values, old_values - value_clip, old_values + value_clip)
        clipped = (held - returns).square()
    loss = (loss_weights * torch.maximum(clipped, free)).sum()
    metrics = {"value_loss": loss.detach(), "value_clip_fraction": (loss_weights * (clipped > free)).sum().detach()}
    return loss, metrics
