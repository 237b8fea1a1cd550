from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algos.advantages import ADVANTAGES, grpo, zero_variance_groups
from rlrun.config.sections import algo as schema

rewards_of_group = st.lists(st.floats(-100, 100).map(lambda r: round(r, 3)), min_size=1, max_size=6)


@st.composite
def scored_groups(draw):
    """Rewards and ids of uneven groups, shuffled together."""
    groups = draw(st.lists(rewards_of_group, min_size=1, max_size=6))
    ids = draw(st.permutations(range(100)))[: len(groups)]
    pairs = draw(st.permutations([(r, i) for i, group in zip(ids, groups, strict=True) for r in group]))
    return np.array([r for r, _ in pairs]), np.array([i for _, i in pairs])


def by_the_book(rewards, ids, normalize_by_std):
    """One sample at a time, with the standard library."""
    result = []
    for reward, mine in zip(rewards, ids, strict=True):
        group = [float(r) for r, other in zip(rewards, ids, strict=True) if other == mine]
        advantage = float(reward) - statistics.fmean(group)
        if normalize_by_std:
            advantage /= (statistics.stdev(group) if len(group) > 1 else 0.0) + 1e-6
        result.append(advantage)
    return np.array(result)


@given(scored_groups(), st.booleans())
def test_advantages_are_those_of_the_formula(groups, normalize):
    rewards, ids = groups
    ours = grpo(rewards, ids, normalize_by_std=normalize)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, by_the_book(rewards, ids, normalize), rtol=1e-4, atol=1e-4)


@given(scored_groups(), st.booleans())
def test_advantages_sum_to_zero_in_every_group(groups, normalize):
    rewards, ids = groups
    advantages = grpo(rewards, ids, normalize_by_std=normalize)
    for i in set(ids.tolist()):
        mine = advantages[ids == i]
        assert abs(mine.sum()) <= 1e-5 * max(1.0, np.abs(mine).sum())


@given(scored_groups(), st.booleans(), st.floats(-1000, 1000))
def test_a_constant_added_to_all_rewards_changes_nothing(groups, normalize, constant):
    rewards, ids = groups
    moved = grpo(rewards + constant, ids, normalize_by_std=normalize)
    np.testing.assert_allclose(moved, grpo(rewards, ids, normalize_by_std=normalize), rtol=1e-4, atol=1e-4)


@given(scored_groups(), st.floats(0.5, 20))
def test_scaling_the_rewards_scales_only_the_unnormalised_advantage(groups, factor):
    rewards, ids = groups
    plain = grpo(rewards, ids, normalize_by_std=False)
    np.testing.assert_allclose(
        grpo(rewards * factor, ids, normalize_by_std=False), plain * factor, rtol=1e-4, atol=1e-3
    )
    normal = grpo(rewards, ids, normalize_by_std=True)
    # 1e-6 beside a deviation of at least 0.0005 / 2 is all the difference that is left.
    np.testing.assert_allclose(grpo(rewards * factor, ids, normalize_by_std=True), normal, rtol=1e-2, atol=1e-4)


def test_worked_example():
    rewards, ids = np.array([1.0, 0.0, 0.0, 1.0, 5.0]), np.array([7, 3, 7, 3, 9])
    assert grpo(rewards, ids, normalize_by_std=False).tolist() == [0.5, -0.5, -0.5, 0.5, 0.0]
    half = 0.5 / (np.sqrt(0.5) + 1e-6)
    expected = [half, -half, -half, half, 0.0]
    np.testing.assert_allclose(grpo(rewards, ids, normalize_by_std=True), expected, rtol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_equal_rewards_give_exactly_zero(normalize):
    advantages = grpo(np.array([0.1] * 3 + [1e6 / 3] * 7), np.array([0] * 3 + [1] * 7), normalize_by_std=normalize)
    assert advantages.tolist() == [0.0] * 10


def test_groups_that_teach_nothing_are_counted():
    rewards = np.array([0.1, 1.0, 0.1, 0.5, 0.1, 1.0])
    assert zero_variance_groups(rewards, np.array([4, 2, 4, 9, 4, 2])) == 3
    assert zero_variance_groups(rewards, np.array([0, 0, 1, 1, 2, 2])) == 0
    assert zero_variance_groups(np.zeros(0), np.zeros(0, np.int64)) == 0


def test_no_samples_give_no_advantages():
    assert grpo(np.zeros(0), np.zeros(0, np.int64), normalize_by_std=True).shape == (0,)


def test_a_reward_that_is_not_finite_is_our_mistake():
    with pytest.raises(AssertionError, match="not finite"):
        grpo(np.array([1.0, np.nan]), np.array([0, 0]), normalize_by_std=True)


def test_schema_offers_exactly_the_estimators_there_are():
    assert set(schema.ADVANTAGES) - {"gae"} == set(ADVANTAGES)
