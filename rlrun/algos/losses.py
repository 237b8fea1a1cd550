"""The policy loss, one value a token (torch): a surrogate, corrections, an entropy bonus and a KL penalty.

Nothing here divides by a number of tokens: every token comes with its weight `w` (`rlrun.algos.weights`), whose
denominators were fixed over the whole optimizer step, so a loss, a gradient or a metric is the plain sum over
micro-batches and ranks, however the batch was cut. Sequences are never cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlrun.algos.importance import importance_factor, off_policy_factor
from rlrun.algos.kl import MAX_LOG_RATIO, kl_estimate
from rlrun.algos.options import LossOptions
from rlrun.algos.segments import sequence_mean
from rlrun.errors import RunFailed

SFT = "sft"


@dataclass(frozen=True)
class Tokens:
    """The N tokens of a micro-batch, sequence after sequence. All but `lengths` are [N], log-probs natural; only
    `logprobs` and `entropy` carry gradients. N may be 0. Where `loss_weights` is 0 the other values are never used,
    whatever they hold."""

    logprobs: Tensor
    advantages: Tensor
    loss_weights: Tensor
    rollout_logprobs: Tensor
    lengths: Tensor
    """[S] int64, tokens of each sequence; they sum to N."""
    old_logprobs: Tensor | None = None
    """None means those of this very pass: no step was taken since the samples came."""
    ref_logprobs: Tensor | None = None
    entropy: Tensor | None = None

    @property
    def counts(self) -> Tensor:
        return self.loss_weights != 0


def policy_loss(tokens: Tokens, options: LossOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's share of the loss, and of the metrics.

    loss = sum_t w_t * (f_t * pg_t - entropy_coef * H_t + kl_coef * KL_t), where pg is the surrogate of `options.kind`
    and the factor f is the product of the corrections (`rlrun.algos.importance`), 1 without any. An empty micro-batch
    has a loss of 0 that can still be back-propagated.

    Metrics are detached scalars. Most are sums of w * value: added over micro-batches and ranks they are the mean over
    tokens (token_mean weights) or over sequences (sequence_mean weights) of the whole step. Keys ending in `_max` are
    to be reduced with max instead, over tokens with w != 0, and are 0 when there are none; keys ending in `_sum` are
    sums over those tokens without weights.

    loss; pg_loss (with corrections, without entropy and KL); entropy (when given); kl_loss (without its coefficient;
    only with a reference); pg_clip_fraction (tokens that clipping changes); ppo_kl (k1 of old to current, old -
    logprobs); ratio_max; rollout_gap_sum and rollout_gap_max (|old - rollout|: the mismatch of trainer and engine);
    log_ratio_abs_sum and log_ratio_abs_max (|logprobs - old|);
    importance_weight and importance_dropped (mean factor, and share of tokens with factor 0); opsm_dropped.

    With kind sft it is `likelihood_loss`.
    """
    if options.kind == SFT:
        return likelihood_loss(tokens, options)
    assert options.kl_coef == 0 or tokens.ref_logprobs is not None, "a KL penalty needs the reference's log-probs"
    assert options.entropy_coef == 0 or tokens.entropy is not None, "an entropy bonus needs the entropy"
    given = tokens.counts
    tokens = _masked(tokens)
    w = tokens.loss_weights
    assert tokens.old_logprobs is not None
    log_ratio = tokens.logprobs - tokens.old_logprobs
    gap = tokens.old_logprobs - tokens.rollout_logprobs
    pg, clipped, ratio = _surrogate(tokens, options)
    metrics = {
        "pg_clip_fraction": (w * clipped).sum(),
        "ppo_kl": (w * -log_ratio).sum(),
        "ratio_max": _max_or_zero(ratio * given),
        "rollout_gap_sum": gap.abs().sum(),
        "rollout_gap_max": _max_or_zero(gap.abs()),
        "log_ratio_abs_sum": log_ratio.abs().sum(),
        "log_ratio_abs_max": _max_or_zero(log_ratio.abs()),
    }
    if options.importance is not None:
        factor = importance_factor(gap, given, tokens.lengths, options.importance)
        pg = factor * pg
        metrics["importance_weight"] = (w * factor).sum()
        metrics["importance_dropped"] = (w * (factor == 0)).sum()
    if options.opsm_delta is not None:
        kept = off_policy_factor(log_ratio, tokens.advantages, given, tokens.lengths, options.opsm_delta)
        pg = kept * pg
        metrics["opsm_dropped"] = (w * (kept == 0)).sum()
    pg_loss = (w * pg).sum()
    loss, metrics["pg_loss"] = pg_loss, pg_loss
    if tokens.entropy is not None:
        metrics["entropy"] = (w * tokens.entropy).sum()
        if options.entropy_coef:
            loss = loss - options.entropy_coef * metrics["entropy"]
    if tokens.ref_logprobs is not None:
        kl = kl_estimate(tokens.logprobs, tokens.ref_logprobs, options.kl_estimator)
        if options.kl_unbiased:
            kl = _exp(log_ratio) * kl
        metrics["kl_loss"] = (w * kl).sum()
        if options.kl_coef:
            loss = loss + options.kl_coef * metrics["kl_loss"]
    metrics["loss"] = loss
    return loss, {name: value.detach() for name, value in metrics.items()}


def likelihood_loss(tokens: Tokens, options: LossOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """loss = sum_t w_t * (-logprobs_t - entropy_coef * H_t): the negative log-likelihood of given tokens. There is no
    old policy, and nothing was rewarded. Metrics: loss; nll (without entropy); entropy (when given)."""
    assert options.entropy_coef == 0 or tokens.entropy is not None, "an entropy bonus needs the entropy"
    tokens = _masked(tokens)
    w = tokens.loss_weights
    loss = (w * -tokens.logprobs).sum()
    metrics = {"nll": loss}
    if tokens.entropy is not None:
        metrics["entropy"] = (w * tokens.entropy).sum()
        if options.entropy_coef:
            loss = loss - options.entropy_coef * metrics["entropy"]
    metrics["loss"] = loss
    return loss, {name: value.detach() for name, value in metrics.items()}


def _masked(tokens: Tokens) -> Tokens:
    """0 instead of whatever tokens without weight hold: an exp of it could overflow and poison the gradient."""
    counts = tokens.counts

    def masked(values: Tensor | None) -> Tensor | None:
        return None if values is None else torch.where(counts, values, torch.zeros_like(values))

    logprobs = masked(tokens.logprobs)
    assert logprobs is not None
    old = masked(tokens.old_logprobs) if tokens.old_logprobs is not None else logprobs.detach()
    return replace(
        tokens,
        logprobs=logprobs,
        old_logprobs=old,
        advantages=masked(tokens.advantages),
        rollout_logprobs=masked(tokens.rollout_logprobs),
        ref_logprobs=masked(tokens.ref_logprobs),
        entropy=masked(tokens.entropy),
    )


def _exp(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def _surrogate(tokens: Tokens, options: LossOptions) -> tuple[Tensor, Tensor, Tensor]:
    """(pg [N], whether clipping changed it [N], the ratio [N], detached) of `options.kind`."""
    ours = POLICY_LOSSES.get(options.kind)
    if ours is not None:
        return ours(tokens, options)
    assert tokens.old_logprobs is not None
    pg = _own_loss(options.kind)(tokens, options)
    if not isinstance(pg, Tensor) or pg.shape != tokens.logprobs.shape:
        what = f"a tensor of shape {tuple(pg.shape)}" if isinstance(pg, Tensor) else f"a {type(pg).__name__}"
        summary = f"{options.kind} returned {what} for {len(tokens.logprobs)} tokens"
        raise RunFailed("policy loss", summary, "return one value for each token, of the shape of tokens.logprobs")
    ratio = _exp((tokens.logprobs - tokens.old_logprobs).detach())
    return torch.where(tokens.counts, pg, torch.zeros_like(pg)), torch.zeros_like(ratio), ratio


def load(kind: str) -> None:
    """Imports a loss of the user's own now, so that one which cannot be imported is known before the first step."""
    if kind not in (*POLICY_LOSSES, SFT):
        _own_loss(kind)


@functools.cache
def _own_loss(import_path: str) -> Callable[[Tokens, LossOptions], Tensor]:
    from rlrun.algos.custom import load_function

    return load_function("policy loss", import_path)


def ppo_clip(tokens: Tokens, options: LossOptions) -> tuple[Tensor, Tensor, Tensor]:
    """max(-rho A, -clip(rho, 1 - clip_low, 1 + clip_high) A) with rho = exp(logprobs - old_logprobs): PPO's clipped
    surrogate (Schulman et al. 2017, eq. 7) with DAPO's separate upper bound."""
    return _clipped(tokens.logprobs - tokens.old_logprobs, tokens, options)  # type: ignore[operator]


def gspo(tokens: Tokens, options: LossOptions) -> tuple[Tensor, Tensor, Tensor]:
    """The same with the ratio of the whole sequence, exp(mean of logprobs - old_logprobs), on each of its tokens (Zheng
    et al. 2025). Its gradient reaches every token of the sequence."""
    log_ratio = tokens.logprobs - tokens.old_logprobs  # type: ignore[operator]
    return _clipped(sequence_mean(log_ratio, tokens.counts, tokens.lengths), tokens, options)


def cispo(tokens: Tokens, options: LossOptions) -> tuple[Tensor, Tensor, Tensor]:
    """-sg(clip(rho, 1 - clip_low, 1 + clip_high)) A logprobs: no token loses its gradient, only its weight is bounded
    (MiniMax-M1 2025). sg stops the gradient."""
    ratio = _exp((tokens.logprobs - tokens.old_logprobs).detach())  # type: ignore[operator]
    bounded = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    changed = (bounded != ratio) & (tokens.advantages != 0)
    return -bounded * tokens.advantages * tokens.logprobs, changed, ratio


def _clipped(log_ratio: Tensor, tokens: Tokens, options: LossOptions) -> tuple[Tensor, Tensor, Tensor]:
    ratio, advantages = _exp(log_ratio), tokens.advantages
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - options.clip_low, 1 + options.clip_high) * advantages
    pg, changed = torch.maximum(unclipped, clipped), clipped > unclipped
    if options.dual_clip is not None:
        # Ye et al. 2020: a negative advantage times an exploding ratio has no other bound.
        bound = -options.dual_clip * advantages
        too_large = (advantages < 0) & (pg > bound)
        pg, changed = torch.where(too_large, bound, pg), changed | too_large
    return pg, changed, ratio.detach()


def _max_or_zero(values: Tensor) -> Tensor:
    return values.max() if values.numel() else values.new_zeros(())


POLICY_LOSSES: dict[str, Callable[[Tokens, LossOptions], tuple[Tensor, Tensor, Tensor]]] = {
    "ppo_clip": ppo_clip,
    "gspo": gspo,
    "cispo": cispo,
}
