"""Estimators of KL(policy || reference) on a sampled token, from d = logprobs - ref_logprobs.

k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d, low_var = k3 clamped to [-10, 10] (J. Schulman, "Approximating KL
divergence", 2020; low_var as in slime and verl). The same formulas for torch, where they carry gradients into the loss,
and for numpy, where they go into rewards.
"""

from __future__ import annotations

from typing import Any

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp (as verl does): e^20 is far beyond any clip range, and an infinite
ratio would turn a clipped token's zero gradient into NaN."""

KL_ESTIMATORS = ("k1", "k2", "k3", "low_var")


def kl_estimate(logprobs: Any, ref_logprobs: Any, kind: str) -> Any:
    """One value a token, differentiable in `logprobs`. Torch tensors or numpy arrays, and the same kind back."""
    assert kind in KL_ESTIMATORS, kind
    d = logprobs - ref_logprobs
    if kind == "k1":
        return d
    if kind == "k2":
        return d * d / 2
    if kind == "k3":
        return _k3(d)
    # Beyond +-20, k3 is above 10 already; without the inner clamp exp overflows and its zero gradient becomes NaN.
    return _k3(d.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)).clip(-10, 10)


def _k3(d: Any) -> Any:
    exp = (-d).exp() if hasattr(d, "exp") else _numpy_exp(-d)
    return exp - 1 + d


def _numpy_exp(d: Any) -> Any:
    import numpy as np

    return np.exp(d)
