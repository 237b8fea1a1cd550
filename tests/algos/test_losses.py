"""Every loss against one that goes token by token in plain Python, finite differences, and a tiny model."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from policy_cases import PLAIN, importance, loss_by_the_book, part, random_tokens

from rlrun.algos.kl import KL_ESTIMATORS, kl_estimate
from rlrun.algos.losses import POLICY_LOSSES, SFT, Tokens, load, policy_loss
from rlrun.algos.weights import LOSS_WEIGHTS, loss_weights
from rlrun.config.sections import algo as schema
from rlrun.config.sections.algo import AlgoConfig
from rlrun.errors import RunFailed

torch.set_num_threads(1)

VARIANTS = {
    "plain": PLAIN,
    "dual_clip": replace(PLAIN, dual_clip=1.2),
    "gspo": replace(PLAIN, kind="gspo", clip_low=0.05, clip_high=0.08),
    "gspo dual_clip": replace(PLAIN, kind="gspo", dual_clip=1.05),
    "cispo": replace(PLAIN, kind="cispo"),
    "cispo unbounded below": replace(PLAIN, kind="cispo", clip_low=1.0, clip_high=0.1),
    "entropy": replace(PLAIN, entropy_coef=0.3),
    **{f"kl {kind}": replace(PLAIN, kl_coef=0.3, kl_estimator=kind) for kind in KL_ESTIMATORS},
    **{f"unbiased {kind}": replace(PLAIN, kl_coef=0.3, kl_estimator=kind, kl_unbiased=True) for kind in KL_ESTIMATORS},
    **{
        f"{correction} {level}": replace(PLAIN, importance=importance(correction, level))
        for correction in ("tis", "icepop", "mask")
        for level in ("token", "sequence", "geometric")
    },
    "veto": replace(PLAIN, importance=importance("none", veto=0.7)),
    "tis veto": replace(PLAIN, importance=importance("tis", veto=0.7)),
    "opsm": replace(PLAIN, opsm_delta=0.02),
    "gspo all": replace(
        PLAIN, kind="gspo", clip_low=0.05, importance=importance("icepop", "geometric"), opsm_delta=0.02,
        entropy_coef=0.1, kl_coef=0.2, kl_unbiased=True,
    ),
}  # fmt: skip
every_variant = pytest.mark.parametrize("variant", VARIANTS)


@every_variant
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_loss_and_its_parts_are_those_of_the_formula(variant, seed):
    tokens, options = random_tokens(seed), VARIANTS[variant]
    loss, metrics = policy_loss(tokens, options)
    expected = loss_by_the_book(tokens, options)
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert float(loss) == float(metrics["loss"])


def gradients(tokens: Tokens, options) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs, entropy = tokens.logprobs.clone().requires_grad_(), tokens.entropy.clone().requires_grad_()
    loss, _ = policy_loss(replace(tokens, logprobs=logprobs, entropy=entropy), options)
    return torch.autograd.grad(loss, (logprobs, entropy), allow_unused=True, materialize_grads=True)


@every_variant
@pytest.mark.parametrize("seed", [3, 4])
def test_gradient_is_that_of_finite_differences(variant, seed):
    """Of the formula with what is detached held fixed: cispo's ratio, and every factor."""
    tokens, options = random_tokens(seed), VARIANTS[variant]
    ours, of_entropy = gradients(tokens, options)
    frozen = freeze(tokens, options)
    step = 1e-6
    for t in range(len(ours)):
        values = []
        for sign in (1, -1):
            moved = tokens.logprobs.clone()
            moved[t] += sign * step
            values.append(frozen(moved))
        assert float(ours[t]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-8), t
    torch.testing.assert_close(of_entropy, -options.entropy_coef * tokens.loss_weights)


def freeze(tokens: Tokens, options):
    """logprobs -> loss, where cispo's bounded ratio and OPSM's decision stay those of `tokens`."""
    if options.kind == "cispo":
        ratio = (tokens.logprobs - tokens.old_logprobs).exp().clamp(1 - options.clip_low, 1 + options.clip_high)
        return lambda moved: float((tokens.loss_weights * -ratio * tokens.advantages * moved).sum())
    if options.opsm_delta is None:
        return lambda moved: float(policy_loss(replace(tokens, logprobs=moved), options)[0])
    dropped = torch.zeros(len(tokens.logprobs), dtype=torch.bool)
    ends = tokens.lengths.cumsum(0).tolist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        counts = tokens.loss_weights[start:end] != 0
        if counts.any():
            drift = (tokens.old_logprobs - tokens.logprobs)[start:end][counts].mean()
            dropped[start:end] = (drift > options.opsm_delta) & (tokens.advantages[start:end] < 0)
    assert dropped.any()
    kept = replace(tokens, advantages=tokens.advantages * ~dropped)
    rest = replace(options, opsm_delta=None)
    return lambda moved: float(policy_loss(replace(kept, logprobs=moved), rest)[0])


@every_variant
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(5)), cuts=st.sets(st.integers(1, 4)))
def test_order_of_samples_and_cut_into_micro_batches_change_nothing(variant, seed, order, cuts):
    tokens, options = random_tokens(seed), VARIANTS[variant]
    loss, whole = policy_loss(tokens, options)
    totals: dict[str, float] = {}
    for first, last in itertools.pairwise([0, *sorted(cuts), 5]):
        _, metrics = policy_loss(part(tokens, list(order[first:last])), options)
        for name, value in metrics.items():
            before = totals.get(name, 0.0)
            totals[name] = max(before, float(value)) if name.endswith("_max") else before + float(value)
    assert totals == pytest.approx({name: float(value) for name, value in whole.items()}, rel=1e-9, abs=1e-12)
    assert totals["loss"] == pytest.approx(float(loss), rel=1e-9, abs=1e-12)


@every_variant
def test_zero_advantage_gives_zero_policy_gradient(variant):
    tokens = random_tokens(5)
    tokens = replace(tokens, advantages=torch.zeros_like(tokens.advantages))
    options = replace(VARIANTS[variant], kl_coef=0.0)
    logprobs, _ = gradients(tokens, options)
    assert logprobs.abs().max() == 0
    assert policy_loss(tokens, options)[1]["pg_loss"] == 0


@every_variant
def test_tokens_without_weight_are_never_looked_at(variant):
    tokens, options = random_tokens(8), VARIANTS[variant]
    off = tokens.loss_weights == 0
    clean, _ = policy_loss(tokens, options)
    junk = torch.tensor([math.inf, math.nan, -1e30] * 14)[:40].double()
    names = ("logprobs", "old_logprobs", "advantages", "ref_logprobs", "rollout_logprobs", "entropy")
    broken = replace(tokens, **{name: torch.where(off, junk, getattr(tokens, name)) for name in names})
    loss, metrics = policy_loss(broken, options)
    assert loss == clean
    assert all(math.isfinite(value) for value in metrics.values())
    gradient, _ = gradients(broken, options)
    assert gradient[off].abs().max() == 0
    assert gradient.isfinite().all()


@every_variant
def test_a_micro_batch_with_nothing_in_it_has_a_loss_that_can_be_propagated(variant):
    none = torch.zeros(0, requires_grad=True)
    empty = Tokens(none, none, none, none, torch.zeros(0, dtype=torch.long), none, none, none)
    loss, metrics = policy_loss(empty, VARIANTS[variant])
    loss.backward()
    assert set(map(float, metrics.values())) == {0.0}
    assert none.grad.shape == (0,)
    one = torch.zeros(1)
    dummy = Tokens(one.clone().requires_grad_(), one, one, one, torch.tensor([1]), one, one, one)
    policy_loss(dummy, VARIANTS[variant])[0].backward()
    assert dummy.logprobs.grad.tolist() == [0.0]


@pytest.mark.parametrize("kind", KL_ESTIMATORS)
def test_kl_estimate_is_zero_on_the_reference_and_has_the_exact_mean(kind):
    """Averaged over the policy's own distribution, k1 and k3 are the KL itself; k2 is close to it when it is small."""
    policy = torch.log_softmax(torch.tensor([0.3, -0.2, 0.1, 0.0], dtype=torch.float64), 0)
    reference = torch.log_softmax(torch.tensor([0.25, -0.1, 0.1, 0.05], dtype=torch.float64), 0)
    exact = (policy.exp() * (policy - reference)).sum()
    mean = (policy.exp() * kl_estimate(policy, reference, kind)).sum()
    assert float(mean) == pytest.approx(float(exact), rel=0.1 if kind == "k2" else 1e-9)
    assert kl_estimate(policy, policy, kind).abs().max() == 0
    in_numpy = kl_estimate(policy.numpy(), reference.numpy(), kind)
    np.testing.assert_allclose(in_numpy, kl_estimate(policy, reference, kind).numpy(), rtol=1e-12)


def test_the_unbiased_kl_has_the_gradient_of_the_exact_one():
    """Samples of an old policy, ratio times k3, averaged over that policy: the gradient of KL(new || reference)."""
    generator = torch.Generator().manual_seed(0)
    old, reference = (torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(0) for _ in range(2))
    logits = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    new = logits.log_softmax(0)
    exact = (new.exp() * (new - reference)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    nothing, one = torch.zeros(6, dtype=torch.float64), torch.tensor([1] * 6)
    options = replace(PLAIN, kl_coef=1.0, kl_estimator="k3", kl_unbiased=True)
    loss, _ = policy_loss(Tokens(new, nothing, old.exp(), old, one, old, reference), options)
    torch.testing.assert_close(torch.autograd.grad(loss, logits, retain_graph=True)[0], expected)
    biased, _ = policy_loss(
        Tokens(new, nothing, old.exp(), old, one, old, reference), replace(options, kl_unbiased=False)
    )
    assert (torch.autograd.grad(biased, logits)[0] - expected).abs().max() > 0.01


def test_low_var_is_clamped_and_stays_differentiable_far_from_the_reference():
    logprobs = torch.tensor([-200.0, -1.0, -12.5], requires_grad=True)
    kl = kl_estimate(logprobs, torch.tensor([-1.0, -200.0, -0.5]), "low_var")
    kl.sum().backward()
    assert kl.tolist() == [10.0, 10.0, 10.0]
    assert logprobs.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", sorted(POLICY_LOSSES))
def test_first_step_of_a_rollout_is_plain_policy_gradient(kind):
    """With old log-probs left out, or given and equal: the same loss, metrics and gradient to the last bit."""
    tokens = random_tokens(6)
    by_sample = torch.tensor([0.5, -1.0, 2.0, 0.3, -0.7], dtype=torch.float64).repeat_interleave(tokens.lengths)
    tokens = replace(tokens, advantages=by_sample, old_logprobs=tokens.logprobs.clone())
    options = replace(PLAIN, kind=kind, kl_coef=0.1, kl_unbiased=True, importance=importance("tis", "sequence"))
    left_out = replace(tokens, old_logprobs=None)
    for a, b in zip(gradients(left_out, options), gradients(tokens, options), strict=True):
        assert torch.equal(a, b)
    assert policy_loss(left_out, options)[1] == policy_loss(tokens, options)[1]
    gradient, _ = gradients(tokens, replace(PLAIN, kind=kind))
    expected = -tokens.loss_weights * by_sample
    if kind == "gspo":  # spread evenly over the tokens of a sequence that count
        sums = [float(e.sum()) / max(int((e != 0).sum()), 1) for e in expected.split(tokens.lengths.tolist())]
        expected = torch.tensor(sums).double().repeat_interleave(tokens.lengths) * (tokens.loss_weights != 0)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    metrics = policy_loss(tokens, replace(PLAIN, kind=kind))[1]
    assert (metrics["pg_clip_fraction"], metrics["ppo_kl"], metrics["ratio_max"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "dual_clip", "flows"),
    [
        (1.0, 0.5, None, False),
        (1.0, -0.5, None, True),
        (-1.0, 0.5, None, True),
        (-1.0, -0.5, None, False),
        (1.0, 0.1, None, True),
        (1.0, 200.0, None, False),
        (-1.0, 0.5, 1.5, False),
        (-1.0, 0.3, 1.5, True),
    ],
)
def test_clipping_stops_the_gradient_only_where_the_ratio_left_the_range_on_its_own_side(
    advantage, log_ratio, dual_clip, flows
):
    one = torch.ones(1)
    logprobs = torch.tensor([-1.0 + log_ratio], requires_grad=True)
    for kind in ("ppo_clip", "gspo"):
        options = replace(PLAIN, kind=kind, dual_clip=dual_clip)
        tokens = Tokens(logprobs, advantage * one, one, -one, torch.tensor([1]), -one)
        loss, metrics = policy_loss(tokens, options)
        (gradient,) = torch.autograd.grad(loss, logprobs)
        assert bool(gradient != 0) is flows
        assert bool(metrics["pg_clip_fraction"]) is not flows


def test_cispo_never_stops_a_gradient_and_bounds_its_weight():
    logprobs = torch.tensor([-0.5, -0.5, -3.0], requires_grad=True)
    old, one = torch.tensor([-1.5, -0.5, -1.0]), torch.ones(3)
    tokens = Tokens(logprobs, one, one, old, torch.tensor([3]), old)
    loss, metrics = policy_loss(tokens, replace(PLAIN, kind="cispo"))
    loss.backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.28, -1.0, -0.8])
    assert metrics["pg_clip_fraction"] == 2


def test_without_a_reference_there_is_no_kl():
    tokens = replace(random_tokens(9), ref_logprobs=None)
    assert "kl_loss" not in policy_loss(tokens, PLAIN)[1]
    with pytest.raises(AssertionError, match="reference"):
        policy_loss(tokens, replace(PLAIN, kl_coef=0.1))
    with pytest.raises(AssertionError, match="entropy"):
        policy_loss(replace(tokens, entropy=None), replace(PLAIN, entropy_coef=0.1))


@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
def test_supervised_learning_is_the_weighted_log_likelihood_and_nothing_else(entropy_coef):
    """Whatever advantages, old and engine log-probs say; in parts too, because the weights are those of the step."""
    tokens, options = random_tokens(11), replace(PLAIN, kind=SFT, entropy_coef=entropy_coef)
    loss, metrics = policy_loss(tokens, options)
    pairs = list(zip(tokens.loss_weights.tolist(), tokens.logprobs.tolist(), tokens.entropy.tolist(), strict=True))
    nll = sum(-w * logprob for w, logprob, _ in pairs)
    entropy = sum(w * h for w, _, h in pairs)
    assert float(metrics["nll"]) == pytest.approx(nll, rel=1e-12)
    assert float(loss) == pytest.approx(nll - entropy_coef * entropy, rel=1e-12)
    assert set(metrics) == {"loss", "nll", "entropy"}
    other = replace(tokens, advantages=-tokens.advantages, old_logprobs=None, rollout_logprobs=0 * tokens.logprobs)
    assert torch.equal(policy_loss(other, options)[0], loss)
    parts = sum(float(policy_loss(part(tokens, chosen), options)[0]) for chosen in ([0, 3], [1], [4, 2], []))
    assert parts == pytest.approx(float(loss), rel=1e-12)
    gradient, _ = gradients(tokens, options)
    assert torch.equal(gradient, -tokens.loss_weights)


def test_what_a_token_without_weight_holds_never_reaches_the_likelihood():
    tokens = random_tokens(12)
    unseen = torch.where(tokens.loss_weights == 0, torch.full_like(tokens.logprobs, -torch.inf), tokens.logprobs)
    options = replace(PLAIN, kind=SFT)
    assert torch.equal(policy_loss(replace(tokens, logprobs=unseen), options)[0], policy_loss(tokens, options)[0])


def test_schema_offers_exactly_what_there_is():
    assert get_args(AlgoConfig.model_fields["kl_estimator"].annotation) == KL_ESTIMATORS
    assert set(schema.LOSSES) == {*POLICY_LOSSES, SFT}


def plain_reinforce(tokens, options):
    """A loss of one's own, found under this module's name."""
    return -tokens.logprobs * tokens.advantages * options.clip_high


def wrong_shape(tokens, options):
    return tokens.logprobs.sum()


def test_a_loss_of_ones_own_is_weighted_and_corrected_like_ours():
    tokens = random_tokens(2)
    options = replace(PLAIN, kind=f"{__name__}:plain_reinforce", importance=importance())
    loss, _ = policy_loss(tokens, options)
    factor = (tokens.old_logprobs - tokens.rollout_logprobs).exp().clamp(0.5, 1.5)
    by_hand = -0.28 * (tokens.loss_weights * factor * tokens.logprobs * tokens.advantages).sum()
    assert float(loss) == pytest.approx(float(by_hand))
    with pytest.raises(RunFailed, match=r"shape \(\) for 40 tokens"):
        policy_loss(tokens, replace(PLAIN, kind=f"{__name__}:wrong_shape"))
    with pytest.raises(RunFailed, match="no attribute 'gone'"):
        load(f"{__name__}:gone")
    load("gspo")


class TinyModel(torch.nn.Module):
    """Token t's log-prob depends on token t - 1 alone, through two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(7, 5)
        self.output = torch.nn.Linear(5, 7)
        self.double()

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.output(torch.tanh(self.embedding(tokens[:-1]))).log_softmax(-1)
        zero = torch.zeros(1).double()
        entropy = -(rows.exp() * rows).sum(-1)
        return torch.cat([zero, rows.gather(1, tokens[1:, None])[:, 0]]), torch.cat([zero, entropy])


@pytest.mark.parametrize("variant", ["plain", "gspo all", "cispo", "tis sequence", "entropy"])
@pytest.mark.parametrize("aggregation", sorted(LOSS_WEIGHTS))
@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(1, 8), min_size=0, max_size=5), seed=st.integers(0, 1000))
def test_gradient_of_a_model_does_not_depend_on_the_cut_into_micro_batches(variant, aggregation, cuts, seed):
    rng = np.random.default_rng(seed)
    tokens = [torch.from_numpy(rng.integers(0, 7, size=rng.integers(2, 9))) for _ in range(9)]
    masks = [(rng.random(len(t)) < 0.6).astype(np.int8) * (np.arange(len(t)) > 0) for t in tokens]
    weights = [torch.from_numpy(w).double() for w in loss_weights(masks, aggregation, constant=7)]
    noise = [torch.from_numpy(rng.normal(scale=0.3, size=(4, len(t)))) for t in tokens]
    model = TinyModel()

    def run(micro_batches: list[list[int]]) -> list[torch.Tensor]:
        model.zero_grad()
        for micro_batch in micro_batches:
            passes = [model(tokens[i]) for i in micro_batch]
            logprobs, entropy = (torch.cat(values) for values in zip(*passes, strict=True))
            old, ref, rollout = (
                torch.cat([p[0].detach() + noise[i][k] for p, i in zip(passes, micro_batch, strict=True)])
                for k in range(3)
            )
            advantages = torch.cat([noise[i][3] for i in micro_batch])
            w = torch.cat([weights[i] for i in micro_batch])
            lengths = torch.tensor([len(tokens[i]) for i in micro_batch])
            batch = Tokens(logprobs, advantages, w, rollout, lengths, old, ref, entropy)
            policy_loss(batch, VARIANTS[variant])[0].backward()
        return [p.grad.clone() for p in model.parameters()]

    bounds = [0, *sorted(set(cuts)), 9]
    split = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    for ours, expected in zip(run(split), run([list(range(9))]), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
