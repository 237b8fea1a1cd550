"""Against an implementation that goes token by token in plain Python, finite differences, and a tiny model."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.algos.losses import KL_ESTIMATORS, kl_estimate, policy_loss
from rlrun.algos.weights import LOSS_WEIGHTS, loss_weights
from rlrun.config.sections.algo import AlgoConfig

KINDS = sorted(KL_ESTIMATORS)
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def random_case(seed: int, n: int = 40, spread: float = 0.3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(n, generator=generator, dtype=torch.float64)

    logprobs = -normal().abs() - 0.1
    weights = normal().abs() * (normal() > -0.5)
    return {
        "logprobs": logprobs,
        "old_logprobs": logprobs + spread * normal(),
        "advantages": normal(),
        "loss_weights": weights / weights.sum(),
        "ref_logprobs": logprobs + spread * normal(),
        "rollout_logprobs": logprobs + 0.01 * normal(),
    }


def kl_by_the_book(d: float, kind: str) -> float:
    if kind == "k1":
        return d
    if kind == "k2":
        return d * d / 2
    k3 = math.exp(-d) - 1 + d
    return min(max(k3, -10.0), 10.0) if kind == "low_var" else k3


def loss_by_the_book(case, clip_low, clip_high, kl_coef, kind) -> dict[str, float]:
    sums = dict.fromkeys(["loss", "pg_loss", "kl_loss", "pg_clip_fraction", "ppo_kl"], 0.0)
    sums["train_rollout_logprob_abs_diff"] = 0.0
    gaps, ratios = [0.0], [0.0]
    rows = zip(*(case[name].tolist() for name in case), strict=True)
    for new, old, advantage, weight, ref, rollout in rows:
        if weight == 0:
            continue
        ratio = math.exp(new - old)
        if advantage > 0:
            pg, clipped = -min(ratio, 1 + clip_high) * advantage, ratio > 1 + clip_high
        else:
            pg, clipped = -max(ratio, 1 - clip_low) * advantage, ratio < 1 - clip_low and advantage < 0
        kl = kl_by_the_book(new - ref, kind)
        sums["pg_loss"] += weight * pg
        sums["kl_loss"] += weight * kl
        sums["loss"] += weight * (pg + kl_coef * kl)
        sums["pg_clip_fraction"] += weight * clipped
        sums["ppo_kl"] += weight * (old - new)
        sums["train_rollout_logprob_abs_diff"] += weight * abs(old - rollout)
        gaps.append(abs(old - rollout))
        ratios.append(ratio)
    return {**sums, "train_rollout_logprob_abs_diff_max": max(gaps), "ratio_max": max(ratios)}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kl_coef=st.sampled_from([0.0, 0.1, 1.0]))
def test_loss_and_metrics_are_those_of_the_formula(kind, seed, kl_coef):
    case = random_case(seed)
    loss, metrics = policy_loss(**case, **CLIP, kl_coef=kl_coef, kl_estimator=kind)
    expected = loss_by_the_book(case, **CLIP, kl_coef=kl_coef, kind=kind)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert float(loss) == float(metrics["loss"])


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_is_that_of_finite_differences(kind):
    case = random_case(3)
    logprobs = case.pop("logprobs").requires_grad_()

    def loss(values: torch.Tensor) -> torch.Tensor:
        return policy_loss(values, **case, **CLIP, kl_coef=0.3, kl_estimator=kind)[0]

    assert torch.autograd.gradcheck(loss, (logprobs,), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_kl_estimate_is_zero_on_the_reference_and_has_the_exact_mean(kind):
    """Averaged over the policy's own distribution, k1 and k3 are the KL itself; k2 is close to it when it is small."""
    policy = torch.log_softmax(torch.tensor([0.3, -0.2, 0.1, 0.0], dtype=torch.float64), 0)
    reference = torch.log_softmax(torch.tensor([0.25, -0.1, 0.1, 0.05], dtype=torch.float64), 0)
    exact = (policy.exp() * (policy - reference)).sum()
    mean = (policy.exp() * kl_estimate(policy, reference, kind)).sum()
    assert float(mean) == pytest.approx(float(exact), rel=0.1 if kind == "k2" else 1e-9)
    assert kl_estimate(policy, policy, kind).abs().max() == 0


def test_low_var_is_clamped_and_stays_differentiable_far_from_the_reference():
    logprobs = torch.tensor([-200.0, -1.0, -12.5], requires_grad=True)
    kl = kl_estimate(logprobs, torch.tensor([-1.0, -200.0, -0.5]), "low_var")
    kl.sum().backward()
    assert kl.tolist() == [10.0, 10.0, 10.0]
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kl_coef", [0.0, 0.5])
def test_zero_advantage_gives_zero_policy_gradient(kl_coef):
    case = random_case(5)
    case["advantages"] = torch.zeros_like(case["advantages"])
    logprobs = case.pop("logprobs").requires_grad_()
    loss, metrics = policy_loss(logprobs, **case, **CLIP, kl_coef=kl_coef, kl_estimator="k3")
    assert metrics["pg_loss"] == 0
    (gradient,) = torch.autograd.grad(loss, logprobs)
    expected = kl_coef * case["loss_weights"] * (1 - torch.exp(case["ref_logprobs"] - logprobs.detach()))
    torch.testing.assert_close(gradient, expected)


def test_first_step_of_a_rollout_is_plain_policy_gradient():
    case = random_case(6)
    case["old_logprobs"] = case["logprobs"].clone()
    logprobs = case.pop("logprobs").requires_grad_()
    loss, metrics = policy_loss(logprobs, **case, **CLIP, kl_coef=0.0, kl_estimator="k1")
    (gradient,) = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(gradient, -case["loss_weights"] * case["advantages"])
    assert metrics["pg_clip_fraction"] == 0
    assert metrics["ppo_kl"] == 0
    assert metrics["ratio_max"] == 1


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "flows"),
    [(1.0, 0.5, False), (1.0, -0.5, True), (-1.0, 0.5, True), (-1.0, -0.5, False), (1.0, 0.1, True), (1.0, 200, False)],
)
def test_clipping_stops_the_gradient_only_where_the_ratio_left_the_range_on_its_own_side(advantage, log_ratio, flows):
    logprobs = torch.tensor([-1.0 + log_ratio], requires_grad=True)
    one = torch.ones(1)
    loss, metrics = policy_loss(
        logprobs, -one, advantage * one, one, None, -one, **CLIP, kl_coef=0.0, kl_estimator="k1"
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert bool(gradient != 0) is flows
    assert bool(metrics["pg_clip_fraction"]) is not flows


def test_tokens_without_weight_are_never_looked_at():
    case = random_case(8)
    off = case["loss_weights"] == 0
    assert off.any()
    clean, _ = policy_loss(**case, **CLIP, kl_coef=0.1, kl_estimator="k3")
    for name in ("logprobs", "old_logprobs", "advantages", "ref_logprobs", "rollout_logprobs"):
        case[name] = torch.where(off, torch.tensor([math.inf, math.nan, -1e30] * 14)[:40].double(), case[name])
    logprobs = case.pop("logprobs").requires_grad_()
    loss, metrics = policy_loss(logprobs, **case, **CLIP, kl_coef=0.1, kl_estimator="k3")
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert loss == clean
    assert all(math.isfinite(value) for value in metrics.values())
    assert gradient[off].abs().max() == 0
    assert gradient.isfinite().all()


def test_an_empty_micro_batch_has_a_loss_that_can_be_propagated():
    none = torch.zeros(0, requires_grad=True)
    loss, metrics = policy_loss(none, none, none, none, none, none, **CLIP, kl_coef=0.1, kl_estimator="low_var")
    loss.backward()
    assert set(map(float, metrics.values())) == {0.0}
    assert none.grad.shape == (0,)


def test_without_a_reference_there_is_no_kl():
    case = random_case(9)
    case["ref_logprobs"] = None
    _, metrics = policy_loss(**case, **CLIP, kl_coef=0.0, kl_estimator="k3")
    assert "kl_loss" not in metrics
    with pytest.raises(AssertionError, match="reference"):
        policy_loss(**case, **CLIP, kl_coef=0.1, kl_estimator="k3")


def test_schema_offers_exactly_the_kl_estimators_there_are():
    assert set(get_args(AlgoConfig.model_fields["kl_estimator"].annotation)) == set(KL_ESTIMATORS)


class TinyModel(torch.nn.Module):
    """Token t's log-prob depends on token t - 1 alone, through two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(7, 5)
        self.output = torch.nn.Linear(5, 7)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.output(torch.tanh(self.embedding(tokens[:-1]))).log_softmax(-1)
        return torch.cat([torch.zeros(1).double(), logits.gather(1, tokens[1:, None])[:, 0]])


@pytest.mark.parametrize("aggregation", sorted(LOSS_WEIGHTS))
@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 8), min_size=0, max_size=5), seed=st.integers(0, 1000))
def test_loss_gradient_and_metrics_do_not_depend_on_the_cut_into_micro_batches(aggregation, cuts, seed):
    rng = np.random.default_rng(seed)
    tokens = [torch.from_numpy(rng.integers(0, 7, size=rng.integers(2, 9))) for _ in range(9)]
    masks = [(rng.random(len(t)) < 0.6).astype(np.int8) * (np.arange(len(t)) > 0) for t in tokens]
    weights = [torch.from_numpy(w).double() for w in loss_weights(masks, aggregation)]
    noise = [torch.from_numpy(rng.normal(scale=0.3, size=(4, len(t)))) for t in tokens]
    model = TinyModel()

    def run(micro_batches: list[list[int]]) -> tuple[dict[str, float], list[torch.Tensor]]:
        model.zero_grad()
        totals: dict[str, float] = {}
        for micro_batch in micro_batches:
            logprobs = [model(tokens[i]) for i in micro_batch]
            old, ref, rollout = (
                torch.cat([p.detach() + noise[i][k] for p, i in zip(logprobs, micro_batch, strict=True)])
                for k in range(3)
            )
            advantages = torch.cat([noise[i][3] for i in micro_batch])
            w = torch.cat([weights[i] for i in micro_batch])
            loss, metrics = policy_loss(
                torch.cat(logprobs), old, advantages, w, ref, rollout, **CLIP, kl_coef=0.1, kl_estimator="low_var"
            )
            loss.backward()
            for name, value in metrics.items():
                before = totals.get(name, 0.0)
                totals[name] = max(before, float(value)) if name.endswith("_max") else before + float(value)
        return totals, [p.grad.clone() for p in model.parameters()]

    bounds = [0, *sorted(set(cuts)), 9]
    split = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    whole_metrics, whole_gradient = run([list(range(9))])
    metrics, gradient = run(split)
    assert metrics == pytest.approx(whole_metrics, rel=1e-9, abs=1e-12)
    for ours, expected in zip(gradient, whole_gradient, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
