from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algos.advantages import grpo, spread
from rlrun.algos.weights import loss_weights
from rlrun.data.batching import deal, first_fit, lpt, make_token_batches, make_train_batches, scatter, schedule_step
from rlrun.data.types import Sample

CAP, SIZE = 40, 3
lengths_of_a_step = st.lists(st.integers(1, 60), min_size=1, max_size=60)
ranks = st.integers(1, 9)
ways = st.sampled_from(["packed", "padded"])


def schedule(lengths, dp, batching, cap=CAP, size=SIZE):
    return schedule_step(lengths, dp, batching=batching, max_tokens_per_gpu=cap, micro_batch_size=size)


def micro_batches_of(share):
    """As indices into the step's samples."""
    return [[share.samples[j] for j in m] for m in share.micro_batches]


@given(lengths_of_a_step, ranks, ways)
def test_each_sample_is_in_exactly_one_micro_batch(lengths, dp, batching):
    shares = schedule(lengths, dp, batching)
    assert len(shares) == dp
    scheduled = [i for share in shares for m in micro_batches_of(share) for i in m]
    assert sorted(scheduled) == list(range(len(lengths)))
    for share in shares:
        assert sorted(j for m in share.micro_batches for j in m) == list(range(len(share.samples)))


@given(lengths_of_a_step, ranks, ways)
def test_every_rank_has_the_same_number_of_micro_batches(lengths, dp, batching):
    assert len({len(share.micro_batches) for share in schedule(lengths, dp, batching)}) == 1


@given(lengths_of_a_step, ranks, ways)
def test_a_micro_batch_is_empty_only_when_every_other_holds_a_single_sample(lengths, dp, batching):
    sizes = [len(m) for share in schedule(lengths, dp, batching) for m in share.micro_batches]
    if 0 in sizes:
        assert max(sizes) == 1
        assert len(sizes) - len(lengths) < dp


@given(lengths_of_a_step, ranks)
def test_a_packed_micro_batch_is_above_the_cap_only_when_it_is_one_long_sample(lengths, dp):
    for share in schedule(lengths, dp, "packed"):
        for m in micro_batches_of(share):
            assert len(m) == 1 or sum(lengths[i] for i in m) <= CAP


@given(lengths_of_a_step, ranks)
def test_packing_needs_no_more_micro_batches_than_first_fit_decreasing_rounded_up(lengths, dp):
    needed = len(first_fit(sorted(lengths, reverse=True), CAP))
    assert len(schedule(lengths, dp, "packed")[0].micro_batches) == -(-needed // dp)


@given(lengths_of_a_step, ranks)
def test_a_padded_micro_batch_holds_up_to_its_size_of_neighbouring_lengths(lengths, dp):
    everything = [m for share in schedule(lengths, dp, "padded") for m in micro_batches_of(share) if m]
    assert max(map(len, everything)) <= SIZE
    spans = sorted((min(lengths[i] for i in m), max(lengths[i] for i in m)) for m in everything)
    assert all(longest <= shortest for (_, longest), (shortest, _) in itertools.pairwise(spans))


@given(lengths_of_a_step, ranks, ways)
def test_the_schedule_is_the_same_every_time(lengths, dp, batching):
    assert schedule(lengths, dp, batching) == schedule(list(lengths), dp, batching)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50), st.integers(1, 8))
def test_the_fullest_lpt_bin_is_within_grahams_bound(lengths, k):
    sums = [sum(lengths[i] for i in b) for b in lpt(lengths, k)]
    assert sum(sums) == sum(lengths)
    optimum = max(max(lengths), -(-sum(lengths) // k))  # a lower bound of it
    assert max(sums) <= sum(lengths) / k + max(lengths) * (1 - 1 / k)
    if k == 1 or len(lengths) <= k:
        assert max(sums) == optimum


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.integers(1, 6))
def test_dealing_gives_every_rank_equally_many(loads, k):
    hands = deal(loads * k, k)
    assert {len(hand) for hand in hands} == {len(loads)}
    assert sorted(i for hand in hands for i in hand) == list(range(len(loads) * k))


def test_first_fit_on_known_answers():
    assert first_fit([4, 8, 5, 3, 2], 10) == [[0, 2], [1, 4], [3]]
    assert first_fit([15, 3, 3, 3, 3, 3, 3, 3], 10) == [[0], [1, 2, 3], [4, 5, 6], [7]]
    assert first_fit([], 10) == []


@pytest.mark.parametrize(("n", "dp", "cap"), [(8192, 64, 32768), (512, 8, 16384), (64, 8, 100_000)])
def test_ranks_are_balanced_and_packing_is_tight(n, dp, cap):
    lengths = np.random.default_rng(0).lognormal(7, 1, n).clip(1, cap).astype(int).tolist()
    shares = schedule(lengths, dp, "packed", cap=cap)
    tokens = [sum(lengths[i] for i in share.samples) for share in shares]
    assert max(tokens) <= 1.011 * np.mean(tokens)
    least = -(-sum(lengths) // cap)
    assert len(shares[0].micro_batches) == -(-least // dp)


def test_a_step_that_fits_into_one_micro_batch_a_rank_is_spread_over_all_ranks():
    shares = schedule([5, 4, 3, 2], 2, "packed", cap=1000)
    assert [share.samples for share in shares] == [(0, 3), (1, 2)]
    assert [share.micro_batches for share in shares] == [((0, 1),), ((0, 1),)]


def test_long_samples_go_alone_and_the_rest_is_packed():
    shares = schedule([50, 10, 10, 45, 10, 10], 1, "packed")
    assert micro_batches_of(shares[0]) == [[0], [3], [1, 2, 4, 5]]


def test_fewer_samples_than_ranks_leave_some_ranks_an_empty_micro_batch():
    shares = schedule([7, 9], 3, "packed")
    assert sorted(share.samples for share in shares) == [(), (0,), (1,)]
    assert [len(share.micro_batches) for share in shares] == [1, 1, 1]


def test_without_slack_the_fullest_bins_are_halved():
    """Three bins of exactly 40: LPT into 4 bins holds the cap here, so lengths are chosen for which it does not."""
    lengths = [22, 18, 21, 19, 20, 12, 8]
    assert max(sum(lengths[i] for i in b) for b in lpt(lengths, 3)) > CAP
    (share,) = schedule(lengths, 1, "packed")
    assert sorted(sum(lengths[i] for i in m) for m in micro_batches_of(share)) == [40, 40, 40]


def make_sample(index: int, length: int, prompt_length: int = 1) -> Sample:
    rng = np.random.default_rng(index)
    mask = (np.arange(length) >= prompt_length).astype(np.int8)
    return Sample(
        prompt_id=index // 2,
        rollout_id=index,
        tokens=np.arange(length, dtype=np.int64) + 1000 * index,
        prompt_length=prompt_length,
        loss_mask=mask,
        rollout_logprobs=(-rng.random(length) * mask).astype(np.float32),
        finish_reason="stop",
        policy_version=0,
        reward=float(rng.random()),
    )


@given(lengths_of_a_step, ranks, ways)
def test_scatter_puts_results_back_in_the_order_of_the_samples(lengths, dp, batching):
    samples = [make_sample(i, length) for i, length in enumerate(lengths)]
    shares = schedule(lengths, dp, batching)
    batches = make_token_batches(samples, shares, temperature=0.7)
    results = [[tokens * 2 for tokens in batch.tokens] for batch in batches]
    for sample, doubled in zip(samples, scatter(results, shares, lengths), strict=True):
        assert (doubled == sample.tokens * 2).all()
    assert {batch.temperature for batch in batches} == {0.7}


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@given(lengths_of_a_step, ranks, ways, st.booleans())
def test_train_batches_hold_each_samples_own_values(aggregation, lengths, dp, batching, with_reference):
    samples = [make_sample(i, length) for i, length in enumerate(lengths)]
    advantages = np.linspace(-1, 1, len(samples)).astype(np.float32)
    old = [s.rollout_logprobs + np.float32(0.5) for s in samples]
    ref = [s.rollout_logprobs - np.float32(0.5) for s in samples] if with_reference else None
    shares = schedule(lengths, dp, batching)
    by_token = spread(advantages, [s.loss_mask for s in samples])
    batches = make_train_batches(samples, by_token, old, ref, shares, aggregation, 1.0)
    weights = loss_weights([s.loss_mask for s in samples], aggregation)  # of the whole step, whatever the ranks
    seen = []
    for batch, share in zip(batches, shares, strict=True):
        assert [len(m) for m in batch.micro_batches] == [len(m) for m in share.micro_batches]
        assert len(batch.ref_logprobs) == (len(batch.tokens) if with_reference else 0)
        for j, tokens in enumerate(batch.tokens):
            i = int(tokens[0]) // 1000
            seen.append(i)
            assert (tokens == samples[i].tokens).all()
            np.testing.assert_array_equal(batch.loss_weights[j], weights[i])
            np.testing.assert_array_equal(batch.advantages[j], advantages[i] * samples[i].loss_mask)
            np.testing.assert_array_equal(batch.old_logprobs[j], old[i])
            np.testing.assert_array_equal(batch.rollout_logprobs[j], samples[i].rollout_logprobs)
            if ref is not None:
                np.testing.assert_array_equal(batch.ref_logprobs[j], ref[i])
    assert sorted(seen) == list(range(len(samples)))


@given(lengths_of_a_step, ranks, ranks, ways, ways)
def test_the_weighted_sum_over_all_ranks_does_not_depend_on_the_schedule(lengths, dp, other_dp, batching, other):
    samples = [make_sample(i, length) for i, length in enumerate(lengths)]
    advantages = grpo(np.array([s.reward for s in samples]), np.arange(len(samples)) // 2, normalize_by_std=True)

    def total(dp, batching):
        batches = make_train_batches(
            samples,
            spread(advantages, [s.loss_mask for s in samples]),
            [s.rollout_logprobs for s in samples],
            None,
            schedule(lengths, dp, batching),
            "token_mean",
            1.0,
        )
        return sum(
            float(b.loss_weights[j].astype(float) @ (b.advantages[j] * b.old_logprobs[j]).astype(float))
            for b in batches
            for m in b.micro_batches
            for j in m
        )

    assert total(dp, batching) == pytest.approx(total(other_dp, other), rel=1e-9, abs=1e-9)


def test_results_that_do_not_fit_the_schedule_are_refused():
    lengths = [3, 4]
    shares = schedule(lengths, 2, "packed")
    right = [[np.zeros(lengths[i]) for i in share.samples] for share in shares]
    scatter(right, shares, lengths)
    with pytest.raises(AssertionError, match="0 results for 1 samples"):
        scatter([[], right[1]], shares, lengths)
    with pytest.raises(AssertionError, match="has 4 tokens and 3 values"):
        scatter(right[::-1], shares, lengths)
    with pytest.raises(AssertionError, match="1 of 2 samples"):
        scatter(right[:1], shares[:1], lengths)
    with pytest.raises(AssertionError, match="twice"):
        scatter([right[0]] * 2, [shares[0]] * 2, lengths)


def test_logprobs_of_another_length_than_their_sample_are_refused():
    samples = [make_sample(i, 4) for i in range(2)]
    with pytest.raises(AssertionError, match="3 values"):
        make_train_batches(
            samples,
            [np.zeros(4)] * 2,
            [np.zeros(4), np.zeros(3)],
            None,
            schedule([4, 4], 1, "packed"),
            "token_mean",
            1.0,
        )


def test_old_log_probs_may_be_left_to_the_step_itself():
    samples = [make_sample(i, 4) for i in range(2)]
    advantages = spread(np.ones(2), [s.loss_mask for s in samples])
    (batch,) = make_train_batches(samples, advantages, None, None, schedule([4, 4], 1, "packed"), "token_mean", 1.0)
    assert batch.old_logprobs == []
