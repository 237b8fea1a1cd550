"""The clipped policy loss and the KL penalty, one value a token (torch).

Nothing here divides: every token comes with its weight `w` (`rlrun.algos.weights`), whose denominators were fixed over
the whole optimizer step, so a loss, a gradient or a metric is the plain sum over micro-batches and ranks, however the
batch was cut.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp (as verl does): e^20 is far beyond any clip range, and an infinite
ratio would turn a clipped token's zero gradient into NaN."""


def _k1(d: Tensor) -> Tensor:
    return d


def _k2(d: Tensor) -> Tensor:
    return d.square() / 2


def _k3(d: Tensor) -> Tensor:
    return torch.exp(-d) - 1 + d


def _low_var(d: Tensor) -> Tensor:
    # Beyond +-20, k3 is above 10 already; without the inner clamp exp overflows and its zero gradient becomes NaN.
    return _k3(d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).clamp(-10, 10)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """Estimate of KL(policy || reference) on each sampled token, same shape as `logprobs`; differentiable in them.

    With d = logprobs - ref_logprobs: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d, low_var = k3 clamped to [-10, 10]
    (J. Schulman, "Approximating KL divergence", 2020; low_var as in slime and verl). KeyError for another kind.
    """
    return KL_ESTIMATORS[kind](logprobs - ref_logprobs)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_weights: Tensor,
    ref_logprobs: Tensor | None,
    rollout_logprobs: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_coef: float,
    kl_estimator: str,
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's share of the loss, and of the metrics.

    All tensors are [N], one entry a token, natural logs; only `logprobs` carries a gradient. N may be 0 (an empty
    micro-batch); the loss is then a zero that can still be back-propagated. Where `loss_weights` is 0 the other
    values are never used, whatever they hold.

    loss = sum_t w_t * (max(-rho_t A_t, -clip(rho_t, 1 - clip_low, 1 + clip_high) A_t) + kl_coef * kl_t) with
    rho = exp(logprobs - old_logprobs): PPO's clipped surrogate (Schulman et al. 2017, eq. 7) with DAPO's separate
    upper bound.

    Metrics are detached scalars. Most are sums of w * value: added over micro-batches and ranks they are the mean over
    tokens (token_mean weights) or over sequences (sequence_mean weights) of the whole step. Keys ending in `_max` are
    to be reduced with max instead, over tokens with w != 0, and are 0 when there are none.

    loss; pg_loss (without the KL); kl_loss (without its coefficient; only with a reference); pg_clip_fraction (tokens
    where the clipped branch is the larger); ppo_kl (k1 of old to current, old - logprobs);
    train_rollout_logprob_abs_diff and ..._max (|old - rollout|: the mismatch of trainer and engine); ratio_max.
    """
    assert kl_coef == 0 or ref_logprobs is not None, "a KL penalty needs the reference's log-probs"
    counts = loss_weights != 0

    def masked(values: Tensor) -> Tensor:
        return torch.where(counts, values, torch.zeros_like(values))

    log_ratio = masked(logprobs - old_logprobs)
    ratio = torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    advantages = masked(advantages)
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    pg_loss = (loss_weights * torch.maximum(unclipped, clipped)).sum()
    loss = pg_loss

    mismatch = masked(old_logprobs - rollout_logprobs).abs()
    metrics = {
        "pg_loss": pg_loss,
        "pg_clip_fraction": (loss_weights * (clipped > unclipped)).sum(),
        "ppo_kl": (loss_weights * -log_ratio).sum(),
        "train_rollout_logprob_abs_diff": (loss_weights * mismatch).sum(),
        "train_rollout_logprob_abs_diff_max": _max_or_zero(mismatch),
        "ratio_max": _max_or_zero(ratio * counts),
    }
    if ref_logprobs is not None:
        # Both sides are masked before the estimator: an unmasked exp could overflow and poison the gradient.
        kl_loss = (loss_weights * kl_estimate(masked(logprobs), masked(ref_logprobs), kl_estimator)).sum()
        metrics["kl_loss"] = kl_loss
        if kl_coef:
            loss = loss + kl_coef * kl_loss
    metrics["loss"] = loss
    return loss, {name: value.detach() for name, value in metrics.items()}


def _max_or_zero(values: Tensor) -> Tensor:
    return values.max() if values.numel() else values.new_zeros(())


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3, "low_var": _low_var}
