from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.algos.advantages import (
    ADVANTAGES,
    Scored,
    discounted,
    estimator,
    grpo,
    reinforce_plus_plus,
    rloo,
    spread,
    token_advantages,
    whitened,
    zero_variance_groups,
)
from rlrun.config.sections import algo as schema
from rlrun.errors import RunFailed

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
    assert set(schema.ADVANTAGES) - {"gae"} == set(ADVANTAGES)  # gae needs values, and has a module of its own


@given(scored_groups())
def test_rloo_compares_with_the_mean_of_the_others(groups):
    rewards, ids = groups
    expected = []
    for i, (reward, mine) in enumerate(zip(rewards, ids, strict=True)):
        others = [float(r) for j, (r, g) in enumerate(zip(rewards, ids, strict=True)) if g == mine and j != i]
        expected.append(float(reward) - statistics.fmean(others) if others else 0.0)
    np.testing.assert_allclose(rloo(rewards, ids), expected, rtol=1e-4, atol=1e-4)


@given(scored_groups(), st.floats(-1000, 1000))
def test_rloo_sums_to_zero_in_every_group_and_ignores_a_constant(groups, constant):
    rewards, ids = groups
    advantages = rloo(rewards, ids)
    np.testing.assert_allclose(rloo(rewards + constant, ids), advantages, rtol=1e-4, atol=1e-3)
    for i in set(ids.tolist()):
        mine = advantages[ids == i]
        assert abs(mine.sum()) <= 1e-5 * max(1.0, np.abs(mine).sum())


@given(st.lists(st.floats(-5, 5), max_size=400), st.sampled_from([1.0, 0.99, 0.5, 0.01]))
def test_discounted_returns_are_those_of_the_recursion(values, gamma):
    expected, running = [], 0.0
    for value in reversed(values):
        running = value + gamma * running
        expected.append(running)
    np.testing.assert_allclose(discounted(np.array(values), gamma), expected[::-1], rtol=1e-9, atol=1e-9)


def test_gae_of_the_textbook_is_the_same_scan():
    """r = [0, 0, 1], V = 0.5, gamma 1, lambda 0.5: delta = [0, 0, 0.5], A = [0.125, 0.25, 0.5]."""
    assert discounted(np.array([0.0, 0.0, 0.5]), 0.5).tolist() == [0.125, 0.25, 0.5]


mask_lists = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=8)


@st.composite
def rollouts(draw, penalised=True):
    """Scored samples; some rollouts consist of several, which share group and reward."""
    masks = [np.array(m, np.float32) for m in draw(mask_lists)]
    n = len(masks)
    ids = np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    reward_of = draw(st.lists(st.floats(-3, 3).map(lambda r: round(r, 2)), min_size=5, max_size=5))
    group_of = draw(st.lists(st.integers(0, 2), min_size=5, max_size=5))
    noise = np.random.default_rng(draw(st.integers(0, 99)))
    penalties = [noise.normal(size=len(m)).astype(np.float32) * m for m in masks] if penalised else None
    return Scored(np.array([reward_of[i] for i in ids]), np.array([group_of[i] for i in ids]), ids, masks, penalties)


def book_of(name, scored, std, gamma):
    """Token advantages from the definitions: dicts, loops and the statistics module."""
    n = len(scored.masks)
    penalty = scored.penalties or [np.zeros(len(m)) for m in scored.masks]
    shaped, group = {}, {}
    for i in range(n):
        key = int(scored.rollouts[i])
        group[key] = int(scored.groups[i])
        if key not in shaped:
            shaped[key] = float(scored.rewards[i])
        if name in ("grpo", "rloo"):
            shaped[key] -= sum(float(p) for p in penalty[i])
    result = []
    for i, mask in enumerate(scored.masks):
        if name == "reinforce_plus_plus":
            rewards = [-float(p) for p in penalty[i]]
            last = max((t for t in range(len(mask)) if mask[t]), default=None)
            if last is not None:
                rewards[last] += float(scored.rewards[i])
            tokens = [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(len(mask))]
        else:
            key = int(scored.rollouts[i])
            peers = [r for other, r in shaped.items() if group[other] == group[key]]
            others = [r for other, r in shaped.items() if group[other] == group[key] and other != key]
            if name == "rloo":
                base = shaped[key] - statistics.fmean(others) if others else 0.0
            else:
                base = shaped[key] - statistics.fmean(peers)
                if name == "grpo" and std:
                    base /= (statistics.stdev(peers) if len(peers) > 1 else 0.0) + 1e-6
            by_token = penalty[i] if name == "reinforce_plus_plus_baseline" else np.zeros(len(mask))
            tokens = [base - float(p) for p in by_token]
        result.append(np.array(tokens) * mask)
    return result


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("std", [True, False])
@settings(max_examples=30, deadline=None)
@given(scored=rollouts(), gamma=st.sampled_from([1.0, 0.9]))
def test_every_estimator_is_that_of_its_definition(name, std, scored, gamma):
    """Samples of one rollout share its reward and count once, a group of one has deviation 0, and the KL in the rewards
    comes off whole samples or single tokens."""
    if name == "grpo" and std:  # whose division by nearly nothing has no digits to compare
        scored = dataclasses.replace(scored, penalties=None)
    ours = token_advantages(scored, estimator(name, std, gamma))
    for values, expected in zip(ours, book_of(name, scored, std, gamma), strict=True):
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(scored=rollouts(), seed=st.integers(0, 99))
def test_the_order_of_the_samples_does_not_matter(name, scored, seed):
    order = np.random.default_rng(seed).permutation(len(scored.masks))
    moved = Scored(
        scored.rewards[order],
        scored.groups[order],
        scored.rollouts[order],
        [scored.masks[i] for i in order],
        [scored.penalties[i] for i in order],
    )
    ours = token_advantages(scored, estimator(name, False, 0.9), whiten=True)
    for i, values in zip(order, token_advantages(moved, estimator(name, False, 0.9), whiten=True), strict=True):
        np.testing.assert_allclose(values, ours[i], atol=1e-4)


@given(rollouts())
def test_whitened_tokens_have_mean_0_and_variance_1_and_nothing_else_has_any(scored):
    rng = np.random.default_rng(0)
    values = [rng.normal(3, 2, len(m)) for m in scored.masks]
    result = whitened(values, scored.masks)
    flat = np.concatenate([v[m > 0] for v, m in zip(result, scored.masks, strict=True)])
    assert all((v[m == 0] == 0).all() for v, m in zip(result, scored.masks, strict=True))
    if flat.size >= 2:
        assert flat.mean() == pytest.approx(0, abs=1e-4)
        assert flat.var(ddof=1) == pytest.approx(1, abs=1e-3)
    else:
        assert not flat.any()


def test_whitening_by_hand():
    """Mean 2, unbiased variance 1 of 1, 2 and 3; the masked 100 has no part in it."""
    (ours,) = whitened([np.array([1.0, 100.0, 2.0, 3.0])], [np.array([1, 0, 1, 1])])
    np.testing.assert_allclose(ours, np.array([-1, 0, 0, 1]) / np.sqrt(1 + 1e-8))


def test_a_sample_masked_throughout_has_no_reward_to_place():
    masks = [np.zeros(3, np.float32), np.array([0, 1, 0, 1, 0], np.float32)]
    scored = Scored(np.array([5.0, 2.0]), np.array([0, 0]), np.array([0, 1]), masks)
    aborted, sample = reinforce_plus_plus(scored, 0.5)
    assert aborted.tolist() == [0, 0, 0]
    assert sample.tolist() == [0, 0.5, 0, 2, 0], "the token in between counts in the discount"


def test_distillation_comes_off_every_token_before_the_whitening():
    masks = [np.array([0, 1, 1], np.float32)]
    scored = Scored(np.array([0.0]), np.array([0]), np.array([0]), masks)
    gap = [np.array([7.0, 0.5, -0.25])]
    plain = token_advantages(scored, estimator("grpo", True, 1.0), distillation=gap)
    assert plain[0].tolist() == [0, -0.5, 0.25]
    white = token_advantages(scored, estimator("grpo", True, 1.0), distillation=gap, whiten=True)
    np.testing.assert_allclose(white[0], [0, -np.sqrt(0.5), np.sqrt(0.5)], rtol=1e-6)


def test_different_rewards_in_one_rollout_are_our_mistake():
    scored = Scored(np.array([1.0, 2.0]), np.zeros(2, int), np.zeros(2, int), [np.ones(1)] * 2)
    with pytest.raises(AssertionError, match="different rewards"):
        token_advantages(scored, estimator("grpo", True, 1.0))


def by_length(scored):
    """An estimator of one's own: one number a sample."""
    return scored.rewards / np.array([len(m) for m in scored.masks])


def by_token(scored):
    return [np.arange(len(m)) for m in scored.masks]


def too_few(scored):
    return scored.rewards[1:]


def not_a_number(scored):
    return scored.rewards * np.nan


def breaks(scored):
    raise KeyError("oops")


def test_an_estimator_of_ones_own_is_used_and_its_result_checked():
    masks = [np.array([0, 1], np.float32), np.array([0, 1, 1], np.float32)]
    scored = Scored(np.array([1.0, 3.0]), np.zeros(2, int), np.arange(2), masks)

    def run(name):
        return token_advantages(scored, estimator(f"{__name__}:{name}", True, 1.0))

    assert [v.tolist() for v in run("by_length")] == [[0, 0.5], [0, 1, 1]]
    assert [v.tolist() for v in run("by_token")] == [[0, 1], [0, 1, 2]]
    for name, reason in (("too_few", r"shape \(1,\) for 2"), ("not_a_number", "not finite"), ("breaks", "KeyError")):
        with pytest.raises(RunFailed, match=reason):
            run(name)


def test_one_number_a_sample_is_spread_over_the_tokens_that_count():
    spread_out = spread(np.array([2.0, -1.0]), [np.array([0, 1, 1]), np.array([1])])
    assert [v.tolist() for v in spread_out] == [[0, 2, 2], [-1]]
