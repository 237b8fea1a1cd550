from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algos.weights import LOSS_WEIGHTS, loss_weights
from rlrun.config.sections.algo import AlgoConfig

masks = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8).map(np.array), min_size=1, max_size=8)


@given(masks, st.integers(0, 2**32))
def test_token_mean_is_the_mean_over_all_tokens(masks, seed):
    values = [np.random.default_rng(seed).normal(size=len(m)) for m in masks]
    counted = np.concatenate([v[m > 0] for v, m in zip(values, masks, strict=True)])
    weighted = sum((w * v).sum() for w, v in zip(loss_weights(masks, "token_mean"), values, strict=True))
    np.testing.assert_allclose(weighted, counted.mean() if counted.size else 0.0, rtol=1e-5, atol=1e-6)


@given(masks, st.integers(0, 2**32))
def test_sequence_mean_is_the_mean_of_the_samples_means(masks, seed):
    values = [np.random.default_rng(seed).normal(size=len(m)) for m in masks]
    means = [v[m > 0].mean() if m.any() else 0.0 for v, m in zip(values, masks, strict=True)]
    weighted = sum((w * v).sum() for w, v in zip(loss_weights(masks, "sequence_mean"), values, strict=True))
    np.testing.assert_allclose(weighted, np.mean(means), rtol=1e-5, atol=1e-6)


@given(masks, st.sampled_from(sorted(LOSS_WEIGHTS)))
def test_weights_are_zero_off_the_mask_and_positive_on_it(masks, aggregation):
    for weight, mask in zip(loss_weights(masks, aggregation), masks, strict=True):
        assert weight.dtype == np.float32
        assert ((weight > 0) == (mask > 0)).all()


def test_an_aborted_sample_does_not_raise_the_weight_of_its_siblings():
    finished, aborted = np.array([0, 1, 1]), np.array([0, 0, 0])
    assert loss_weights([finished, aborted], "sequence_mean")[0].tolist() == [0.0, 0.25, 0.25]


@pytest.mark.parametrize("aggregation", sorted(LOSS_WEIGHTS))
def test_a_step_that_is_masked_throughout_weighs_nothing(aggregation):
    assert loss_weights([np.zeros(2, np.int8)] * 2, aggregation)[1].tolist() == [0.0, 0.0]


def test_schema_offers_exactly_the_aggregations_there_are():
    assert set(get_args(AlgoConfig.model_fields["loss_aggregation"].annotation)) == set(LOSS_WEIGHTS)
