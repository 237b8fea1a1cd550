from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algos.weights import LOSS_WEIGHTS, loss_weights
from rlrun.config.sections.algo import AlgoConfig

CONSTANT = 16
masks = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8).map(np.array), min_size=1, max_size=8)
siblings = st.lists(st.integers(0, 3), min_size=8, max_size=8)
aggregations = st.sampled_from(sorted(LOSS_WEIGHTS))


def values_of(masks, seed):
    return [np.random.default_rng([seed, i]).normal(size=len(m)) for i, m in enumerate(masks)]


def total(masks, values, aggregation, rollout_of=None):
    weights = loss_weights(masks, aggregation, rollout_of, CONSTANT)
    return sum(float((w * v).sum()) for w, v in zip(weights, values, strict=True))


def by_slimes_formula(masks, values, rollout_of):
    """L = sum over samples of (sum x * mask / max(M, 1)) / G, with M summed over all siblings and G rollouts."""
    rollouts = list(rollout_of)
    m = {r: sum(int(mask.sum()) for mask, q in zip(masks, rollouts, strict=True) if q == r) for r in set(rollouts)}
    terms = (float((v * k).sum()) / max(m[r], 1) for v, k, r in zip(values, masks, rollouts, strict=True))
    return sum(terms) / len(set(rollouts))


@given(masks, st.integers(0, 2**32))
def test_token_mean_is_the_mean_over_all_tokens(masks, seed):
    values = values_of(masks, seed)
    counted = np.concatenate([v[m > 0] for v, m in zip(values, masks, strict=True)])
    expected = counted.mean() if counted.size else 0.0
    np.testing.assert_allclose(total(masks, values, "token_mean"), expected, rtol=1e-5, atol=1e-6)


@given(masks, st.integers(0, 2**32))
def test_sequence_mean_is_the_mean_of_the_samples_means(masks, seed):
    values = values_of(masks, seed)
    means = [v[m > 0].mean() if m.any() else 0.0 for v, m in zip(values, masks, strict=True)]
    np.testing.assert_allclose(total(masks, values, "sequence_mean"), np.mean(means), rtol=1e-5, atol=1e-6)


@given(masks, siblings, st.integers(0, 2**32))
def test_rollout_mean_is_the_mean_over_rollouts_of_the_mean_over_all_their_siblings_tokens(masks, rollouts, seed):
    values, rollout_of = values_of(masks, seed), np.array(rollouts[: len(masks)])
    expected = by_slimes_formula(masks, values, rollout_of)
    np.testing.assert_allclose(total(masks, values, "rollout_mean", rollout_of), expected, rtol=1e-5, atol=1e-6)


@given(masks, siblings, st.integers(0, 2**32))
def test_constant_is_a_rollouts_sum_over_a_fixed_number_of_tokens(masks, rollouts, seed):
    values, rollout_of = values_of(masks, seed), np.array(rollouts[: len(masks)])
    summed = sum(float((v * m).sum()) for v, m in zip(values, masks, strict=True))
    expected = summed / CONSTANT / len(set(rollout_of.tolist()))
    np.testing.assert_allclose(total(masks, values, "constant", rollout_of), expected, rtol=1e-5, atol=1e-6)


@given(masks, siblings, st.integers(0, 2**32))
def test_cutting_a_rollout_into_siblings_leaves_its_loss_alone(masks, rollouts, seed):
    """Samples that share a rollout weigh what one sample of all their tokens would."""
    values, rollout_of = values_of(masks, seed), rollouts[: len(masks)]
    whole = sorted(set(rollout_of))
    joined = [np.concatenate([m for m, r in zip(masks, rollout_of, strict=True) if r == q]) for q in whole]
    joined_values = [np.concatenate([v for v, r in zip(values, rollout_of, strict=True) if r == q]) for q in whole]
    for aggregation in ("token_mean", "rollout_mean", "constant"):
        cut = total(masks, values, aggregation, np.array(rollout_of))
        assert cut == pytest.approx(total(joined, joined_values, aggregation), rel=1e-5, abs=1e-6)
    assert total(joined, joined_values, "rollout_mean") == pytest.approx(
        total(joined, joined_values, "sequence_mean"), rel=1e-5, abs=1e-6
    )


@given(masks, siblings, aggregations, st.randoms(use_true_random=False))
def test_a_samples_weights_do_not_depend_on_the_order_of_the_step(masks, rollouts, aggregation, random):
    rollout_of = np.array(rollouts[: len(masks)])
    order = list(range(len(masks)))
    random.shuffle(order)
    here = loss_weights(masks, aggregation, rollout_of, CONSTANT)
    there = loss_weights([masks[i] for i in order], aggregation, rollout_of[order], CONSTANT)
    for position, i in enumerate(order):
        np.testing.assert_array_equal(there[position], here[i])


@given(masks, aggregations)
def test_weights_are_zero_off_the_mask_and_positive_on_it(masks, aggregation):
    for weight, mask in zip(loss_weights(masks, aggregation, constant=CONSTANT), masks, strict=True):
        assert weight.dtype == np.float32
        assert ((weight > 0) == (mask > 0)).all()


@pytest.mark.parametrize("aggregation", ["sequence_mean", "rollout_mean", "constant"])
def test_a_masked_sample_does_not_raise_the_weight_of_its_siblings(aggregation):
    finished, masked = np.array([0, 1, 1]), np.array([0, 0, 0])
    weights = loss_weights([finished, masked], aggregation, constant=2)
    assert weights[0].tolist() == [0.0, 0.25, 0.25]


@pytest.mark.parametrize("aggregation", sorted(LOSS_WEIGHTS))
def test_a_step_that_is_masked_throughout_weighs_nothing(aggregation):
    assert loss_weights([np.zeros(2, np.int8)] * 2, aggregation, constant=8)[1].tolist() == [0.0, 0.0]


def test_schema_offers_exactly_the_aggregations_there_are():
    assert set(get_args(AlgoConfig.model_fields["loss_aggregation"].annotation)) == set(LOSS_WEIGHTS)
