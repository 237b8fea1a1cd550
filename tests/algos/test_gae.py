"""GAE against the recursion of the paper, one token at a time, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algos.gae import BLOCK, gae, token_rewards


def serial(rewards, values, mask, gamma, gae_lambda):
    """(advantages, returns) [T] of one sample, backwards over the tokens that the policy produced."""
    advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
    next_value = next_advantage = 0.0
    for t in reversed(np.flatnonzero(mask)):
        delta = float(rewards[t]) + gamma * next_value - float(values[t])
        next_advantage = advantages[t] = delta + gamma * gae_lambda * next_advantage
        next_value = float(values[t])
        returns[t] = advantages[t] + next_value
    return advantages, returns


def check(rewards, values, masks, gamma, gae_lambda):
    advantages, returns = gae(rewards, values, masks, gamma=gamma, gae_lambda=gae_lambda)
    for i, mask in enumerate(masks):
        for got, want in zip(
            (advantages[i], returns[i]), serial(rewards[i], values[i], mask, gamma, gae_lambda), strict=True
        ):
            assert got.dtype == np.float32
            assert got.shape == (len(mask),)
            assert np.abs(got - want).max() <= 1e-6 * max(1.0, np.abs(want).max())


@st.composite
def samples(draw):
    """Ragged samples of zero to several blocks, whose masks have holes, or are one run, or nothing."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    masks = []
    for length in draw(st.lists(st.integers(1, 3 * BLOCK + 5), max_size=5)):
        kind = draw(st.sampled_from(("all", "run", "holes", "none")))
        begin, end = sorted(rng.integers(0, length + 1, 2))
        places = np.arange(length)
        mask = {
            "all": places >= 0,
            "run": (begin <= places) & (places < end),
            "holes": rng.random(length) < 0.6,
            "none": places < 0,
        }[kind]
        masks.append(mask.astype(np.float32))
    drawn = [[rng.standard_normal(len(m)).astype(np.float32) for m in masks] for _ in range(2)]
    return *drawn, masks


@given(samples(), st.sampled_from((1.0, 0.99, 0.5)), st.sampled_from((1.0, 0.95, 0.3, 0.0)))
def test_it_is_the_recursion_whatever_the_lengths_and_masks(batch, gamma, gae_lambda):
    check(*batch, gamma, gae_lambda)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (1.0, 0.95), (0.999, 0.99)])
def test_it_is_exact_on_long_samples_too(gamma, gae_lambda):
    """Three levels of blocks; at gamma * lambda = 1 nothing grows that should not."""
    rng = np.random.default_rng(0)
    lengths = (BLOCK**2 * 3 + 7, BLOCK**2, 1)
    values, rewards = ([rng.standard_normal(n).astype(np.float32) for n in lengths] for _ in range(2))
    check(rewards, values, [np.ones(n) for n in lengths], gamma, gae_lambda)


def test_the_golden_vector():
    advantages, returns = gae([np.array([0, 0, 1])], [np.full(3, 0.5)], [np.ones(3)], gamma=1.0, gae_lambda=0.5)
    assert advantages[0].tolist() == [0.125, 0.25, 0.5]
    assert returns[0].tolist() == [0.625, 0.75, 1.0]


def test_what_the_policy_did_not_write_is_as_if_it_were_not_there():
    """Two turns with a tool's answer in between: the first turn's last token is followed by the second's first."""
    mask = np.array([0, 1, 1, 0, 0, 1, 1])
    values, rewards = np.arange(7.0), np.array([9, 0, 0.5, 9, 9, 0, 1.0])
    turns = gae([rewards], [values], [mask], gamma=0.9, gae_lambda=0.8)
    joined = gae([rewards[mask > 0]], [values[mask > 0]], [np.ones(4)], gamma=0.9, gae_lambda=0.8)
    for with_holes, without in zip(turns, joined, strict=True):
        assert with_holes[0][mask > 0].tolist() == without[0].tolist()
        assert not with_holes[0][mask == 0].any()


def test_at_lambda_1_the_return_is_the_sum_of_what_follows_whatever_the_critic_says():
    rng = np.random.default_rng(1)
    rewards, values = rng.standard_normal(100), rng.standard_normal(100)
    _, (returns,) = gae([rewards], [values], [np.ones(100)], gamma=1.0, gae_lambda=1.0)
    np.testing.assert_allclose(returns, rewards[::-1].cumsum()[::-1], atol=1e-5)


def test_the_reward_is_paid_with_the_last_token_and_the_penalty_with_each():
    masks = [np.array([0, 1, 1, 0]), np.array([0, 0])]
    penalties = [np.array([9.0, 0.25, 0.5, 9.0]), np.zeros(2)]
    paid = token_rewards(np.array([1.0, 5.0]), masks, penalties)
    assert [p.tolist() for p in paid] == [[0, -0.25, 0.5, 0], [0, 0]]
    assert token_rewards(np.array([1.0, 5.0]), masks, None)[0].tolist() == [0, 0, 1, 0]


def test_no_samples_have_no_advantages():
    assert gae([], [], [], gamma=1.0, gae_lambda=1.0) == ([], [])
