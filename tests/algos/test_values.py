"""The critic's loss: closed forms in float64, its gradient against finite differences, and what may not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algos.values import value_loss


def f64(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "old", "target", "clip", "loss", "gradient"),
    [
        (1.0, 1.0, 3.0, 0.2, 4.0, -4.0),  # where it was: (1 - 3)^2, no half
        (1.1, 1.0, 3.0, 0.2, 3.61, -3.8),  # inside of the clip
        (1.5, 1.0, 3.0, 0.2, 3.24, 0.0),  # too far towards the return: (1.2 - 3)^2, held
        (0.5, 1.0, 3.0, 0.2, 6.25, -5.0),  # too far the wrong way: led back
        (1.5, 1.0, 3.0, None, 2.25, -3.0),  # no clip
        (4.0, 1.0, 3.0, 0.2, 3.24, 0.0),  # beyond the return, which the held value has not reached
        (9.0, 1.0, 3.0, 0.2, 36.0, 12.0),  # so far beyond that it is led back
    ],
)
def test_the_closed_forms(value, old, target, clip, loss, gradient):
    v = f64(value).requires_grad_()
    got, metrics = value_loss(v, f64(old), f64(target), f64(0.5), value_clip=clip)
    got.backward()
    assert got.item() == pytest.approx(0.5 * loss, rel=1e-12)
    assert v.grad.item() == pytest.approx(0.5 * gradient, rel=1e-12, abs=1e-15)
    assert metrics["value_loss"] == got
    assert metrics["value_clip_fraction"].item() == (0.5 if gradient == 0 else 0.0)


@given(st.integers(0, 2**32 - 1), st.sampled_from((None, 0.05, 0.2, 2.0)))
def test_the_gradient_is_that_of_finite_differences(seed, clip):
    rng = np.random.default_rng(seed)
    value, old, target, weights = (torch.from_numpy(rng.standard_normal(6)) for _ in range(4))
    step = 1e-7
    v = value.clone().requires_grad_()
    value_loss(v, old, target, weights, value_clip=clip)[0].backward()
    for i in range(6):
        ends = []
        for sign in (1, -1):
            moved = value.clone()
            moved[i] += sign * step
            ends.append(value_loss(moved, old, target, weights, value_clip=clip)[0].item())
        assert v.grad[i].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-4)


def test_tokens_without_a_weight_never_count_whatever_they_hold():
    nan, inf = float("nan"), float("inf")
    v = f64(1.0, nan, inf).requires_grad_()
    loss, metrics = value_loss(v, f64(1.0, nan, inf), f64(2.0, nan, -inf), f64(1.0, 0.0, 0.0), value_clip=0.2)
    loss.backward()
    assert loss.item() == 1.0
    assert v.grad.tolist() == [-2.0, 0.0, 0.0]
    assert metrics["value_clip_fraction"].item() == 0.0


def test_an_empty_micro_batch_can_be_propagated_back():
    v = torch.zeros(0, requires_grad=True)
    loss, _ = value_loss(v, torch.zeros(0), torch.zeros(0), torch.zeros(0), value_clip=0.2)
    loss.backward()
    assert loss.item() == 0.0
