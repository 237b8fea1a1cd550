"""What a token still counts after the gap between engine and trainer, or between old and new policy, was looked at
(torch). Factors multiply the policy loss of a token; its weight, and with it every denominator, stays what it was.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlrun.algos.kl import MAX_LOG_RATIO
from rlrun.algos.options import ImportanceOptions
from rlrun.algos.segments import sequence_any, sequence_mean, sequence_sum


def importance_factor(log_w: Tensor, counts: Tensor, lengths: Tensor, options: ImportanceOptions) -> Tensor:
    """[N], detached, from log w = old_logprobs - rollout_logprobs of each token ([N], 0 where it does not count).

    level: w of the token, of the sequence (exp of the sum), or geometric (exp of the mean, which does not grow with the
    length). correction: tis clamps w to low..high (Yao et al. 2025, truncated importance sampling); icepop is w inside
    the bounds and 0 outside (Ling team 2025); mask is 1 inside and 0 outside. veto then drops every sequence with a
    token whose own w is below it.
    """
    token_log_w = log_w.detach()
    log_w = token_log_w
    if options.level == "sequence":
        log_w = sequence_sum(log_w, lengths)
    elif options.level == "geometric":
        log_w = sequence_mean(log_w, counts, lengths)
    w = log_w.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    inside = ((w >= options.low) & (w <= options.high)).to(w.dtype)
    factor = {
        "tis": lambda: w.clamp(options.low, options.high),
        "icepop": lambda: w * inside,
        "mask": lambda: inside,
        "none": lambda: torch.ones_like(w),
    }[options.correction]()
    if options.veto is not None:
        factor = factor * ~sequence_any(counts & (token_log_w < math.log(options.veto)), lengths)
    return factor


def off_policy_factor(log_ratio: Tensor, advantages: Tensor, counts: Tensor, lengths: Tensor, delta: float) -> Tensor:
    """[N] of 0 and 1: 0 on tokens with a negative advantage in sequences whose mean of old - new log-probs is above
    `delta` (off-policy sequence masking, DeepSeek-V3.2 2025). `log_ratio` = new - old."""
    drifted = sequence_mean(-log_ratio.detach(), counts, lengths) > delta
    return (~(drifted & (advantages < 0))).to(log_ratio.dtype)
