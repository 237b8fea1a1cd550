from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data.selection import Hooks, overlong_penalty, select
from rlrun.data.types import Group, Prompt, Sample
from rlrun.errors import RunFailed
from rlrun.plan.parts.sampling import OverlongPlan, SamplingPlan

LIMIT = 10


def sample(reward=0.0, rollout_id=0, length=4, finish_reason="stop"):
    tokens = np.zeros(1 + length, np.int64)
    mask = (np.arange(1 + length) > 0).astype(np.int8)
    return Sample(0, rollout_id, tokens, 1, mask, np.zeros(1 + length, np.float32), finish_reason, 0, reward=reward)


def cut(reward=0.0, rollout_id=0):
    return sample(reward, rollout_id, LIMIT, "length")


def group(*samples):
    """Samples without a rollout_id of their own are rollouts of their own."""
    if not any(s.rollout_id for s in samples):
        for i, s in enumerate(samples):
            s.rollout_id = i
    return Group(Prompt(7, (), (1,)), list(samples))


def overlong(handling, buffer_tokens=4, penalty=1.0):
    return SamplingPlan(overlong=OverlongPlan(handling, LIMIT, buffer_tokens, penalty))


def test_nothing_is_touched_where_nothing_is_asked_for():
    g = group(sample(1.0), cut(1.0))
    assert select(g, SamplingPlan(), Hooks()) is None
    assert [s.reward for s in g.samples] == [1.0, 1.0]
    assert not any(s.removed for s in g.samples)


@pytest.mark.parametrize(
    ("rewards", "reason"), [((1, 1, 1), "zero_variance"), ((0, 0), "zero_variance"), ((0, 1), None)]
)
def test_groups_of_equal_rewards_are_dropped(rewards, reason):
    assert select(group(*map(sample, rewards)), SamplingPlan("drop_zero_variance"), Hooks()) == reason


def test_siblings_count_once_when_rewards_are_compared():
    g = group(sample(1.0, 3), sample(1.0, 3), sample(1.0, 4))
    assert select(g, SamplingPlan("drop_zero_variance"), Hooks()) == "zero_variance"


def test_siblings_with_rewards_that_differ_are_refused():
    with pytest.raises(
        RunFailed, match=r"prompt 7: the agent gave the 2 samples of rollout 3 rewards that differ: 0, 1"
    ):
        select(group(sample(0.0, 3), sample(1.0, 3)), SamplingPlan(), Hooks())
    halves = Hooks(postprocess=lambda g: [0.5, 0.25])
    with pytest.raises(RunFailed, match=r"reward.postprocess gave the 2 samples of rollout 3"):
        select(group(sample(1.0, 3), sample(1.0, 3)), SamplingPlan(), halves)


def test_the_users_filter_sees_the_rewards_of_postprocess():
    hooks = Hooks(
        postprocess=lambda g: [10 * s.reward for s in g.samples], group_filter=lambda g: g.samples[0].reward > 5
    )
    kept, dropped = group(sample(1.0)), group(sample(0.1))
    assert select(kept, SamplingPlan("mine:f"), hooks) is None
    assert kept.samples[0].reward == 10.0
    assert select(dropped, SamplingPlan("mine:f"), hooks) == "filter"


def test_the_sample_filter_removes_samples_and_keeps_them_in_the_group():
    g = group(sample(0.0), sample(1.0), sample(2.0))
    assert select(g, SamplingPlan(), Hooks(sample_filter=lambda g: [s.reward != 1 for s in g.samples])) is None
    assert [s.removed for s in g.samples] == [False, True, False]
    assert len(g.samples) == 3


def test_mask_removes_cut_samples_and_leaves_their_rewards():
    g = group(sample(1.0), cut(0.5))
    assert select(g, overlong("mask"), Hooks()) is None
    assert [(s.removed, s.reward) for s in g.samples] == [(False, 1.0), (True, 0.5)]


def test_drop_takes_out_whole_rollouts_and_groups_that_are_left_too_small():
    g = group(sample(1.0, 1), cut(1.0, 1), sample(0.0, 2), sample(0.5, 3))
    assert select(g, overlong("drop"), Hooks()) is None
    assert [s.rollout_id for s in g.samples] == [2, 3]
    assert select(group(sample(1.0), cut(0.0)), overlong("drop"), Hooks()) == "overlong"


def test_penalize_lowers_the_reward_of_a_whole_rollout_by_its_longest_sample():
    g = group(sample(1.0, 1, 8), sample(1.0, 1, 2), sample(1.0, 2, 6), cut(1.0, 3))
    assert select(g, overlong("penalize"), Hooks()) is None
    assert [s.reward for s in g.samples] == [0.5, 0.5, 1.0, 0.0]


def dapo(length, limit, buffer, factor):
    """Yu et al. 2025, equation 13, times a factor."""
    if length <= limit - buffer:
        return 0.0
    return factor * (((limit - buffer) - length) / buffer if length <= limit else -1.0)


@given(st.integers(1, 200), st.integers(1, 100), st.data())
def test_the_penalty_is_dapos_soft_punishment(length, limit, data):
    buffer = data.draw(st.integers(1, limit))
    ours = -overlong_penalty(length, OverlongPlan("penalize", limit, buffer, 0.5))
    assert ours == pytest.approx(dapo(length, limit, buffer, 0.5))
