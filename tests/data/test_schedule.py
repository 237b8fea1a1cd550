from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data.schedule import best_fit, cut_steps, deal, first_fit, lpt, schedule_step

CAP, SIZE = 40, 3
lengths_of_a_step = st.lists(st.integers(1, 60), min_size=1, max_size=60)
ranks = st.integers(1, 9)
ways = st.sampled_from(["packed", "padded"])
attention = st.sampled_from([0.0, 0.01, 1.0])


def schedule(lengths, dp, batching, cap=CAP, size=SIZE, **more):
    return schedule_step(lengths, dp, batching=batching, max_tokens_per_gpu=cap, micro_batch_size=size, **more)


def micro_batches_of(share):
    """As indices into the step's samples."""
    return [[share.samples[j] for j in m] for m in share.micro_batches]


@given(lengths_of_a_step, ranks, ways, attention, st.integers(1, 4))
def test_each_sample_is_in_exactly_one_micro_batch(lengths, dp, batching, attention_share, multiple):
    shares = schedule(lengths, dp, batching, attention_share=attention_share, multiple=multiple)
    assert len(shares) == dp
    scheduled = [i for share in shares for m in micro_batches_of(share) for i in m]
    assert sorted(scheduled) == list(range(len(lengths)))
    for share in shares:
        assert [j for m in share.micro_batches for j in m] == list(range(len(share.samples)))


@given(lengths_of_a_step, ranks, ways, attention, st.integers(1, 4))
def test_every_rank_has_the_same_number_of_micro_batches(lengths, dp, batching, attention_share, multiple):
    shares = schedule(lengths, dp, batching, attention_share=attention_share, multiple=multiple)
    (count,) = {len(share.micro_batches) for share in shares}
    assert count % multiple == 0


@given(lengths_of_a_step, ranks, ways)
def test_a_micro_batch_is_empty_only_when_every_other_holds_a_single_sample(lengths, dp, batching):
    sizes = [len(m) for share in schedule(lengths, dp, batching) for m in share.micro_batches]
    if 0 in sizes:
        assert max(sizes) == 1
        assert len(sizes) - len(lengths) < dp


@given(lengths_of_a_step, ranks, attention)
def test_a_packed_micro_batch_is_above_the_cap_only_when_it_is_one_long_sample(lengths, dp, attention_share):
    for share in schedule(lengths, dp, "packed", attention_share=attention_share):
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


@pytest.mark.parametrize("fit", [first_fit, best_fit])
@given(lengths_of_a_step)
def test_a_fit_is_a_permutation_within_the_cap_with_no_two_bins_that_could_be_one(fit, lengths):
    bins = fit(lengths, CAP)
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    sums = sorted(sum(lengths[i] for i in b) for b in bins)
    assert all(len(b) == 1 for b in bins if sum(lengths[i] for i in b) > CAP)
    assert len(sums) < 2 or sums[0] + sums[1] > CAP


def test_best_fit_takes_the_fullest_bin_with_room():
    assert best_fit([7, 6, 3, 4], 10) == [[0, 2], [1, 3]]
    assert best_fit([5, 8, 2, 5], 10) == [[0, 3], [1, 2]]
    assert best_fit([15, 10, 1], 10) == [[0], [1], [2]]


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


def test_lpt_where_differencing_finds_other_bins_of_the_same_sums():
    """Karmarkar-Karp gives [1..8] as [[1,2,4,7],[0,3,5,6]]: 18 and 18. LPT gets there as well, with other members."""
    bins = lpt(list(range(1, 9)), 2)
    assert bins == [[7, 4, 3, 0], [6, 5, 2, 1]]
    assert [sum(i + 1 for i in b) for b in bins] == [18, 18]


def test_nine_equal_samples_of_three_rollouts_on_two_ranks():
    """First fit alone, strided, gives ranks of 5 and 4 samples in two micro-batches each, as ours does; which samples
    share one is decided by the even filling instead: 4 micro-batches of at most 4 samples (cap 12)."""
    steps = cut_steps(np.array([0, 0, 0, 1, 1, 2, 2, 2, 2]), 3)
    assert [step.tolist() for step in steps] == [list(range(9))]
    assert first_fit([3] * 9, 12) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    shares = schedule([3] * 9, 2, "packed", cap=12)
    assert sorted(len(share.samples) for share in shares) == [4, 5]
    assert [[len(m) for m in share.micro_batches] for share in shares] == [[3, 2], [2, 2]]


def test_groups_that_take_turns_are_cut_into_whole_ones():
    assert [step.tolist() for step in cut_steps(np.array([7, 3, 7, 3]), 1)] == [[0, 2], [1, 3]]
    assert [step.tolist() for step in cut_steps(np.array([7, 3, 7, 3]), None)] == [[0, 1, 2, 3]]
    assert cut_steps(np.array([], int), None) == []
    with pytest.raises(AssertionError, match="3 groups do not form steps of 2"):
        cut_steps(np.array([0, 1, 2]), 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 4), st.booleans())
def test_steps_hold_each_sample_once_and_no_group_is_in_two(groups, size, variable):
    number = len(dict.fromkeys(groups))
    size = next(s for s in range(size, 0, -1) if number % s == 0)
    group_of = np.array(groups)
    steps = cut_steps(group_of, None if variable else size)
    assert sorted(i for step in steps for i in step) == list(range(len(groups)))
    assert [len(set(group_of[step])) for step in steps] == ([number] if variable else [size] * (number // size))
    order = list(dict.fromkeys(groups))
    assert [order.index(g) // (number if variable else size) for g in groups] == [
        next(s for s, step in enumerate(steps) if i in step) for i in range(len(groups))
    ]


def test_balancing_operations_gives_the_rank_with_a_long_sample_fewer_tokens():
    lengths = [8000] + [500] * 64
    work = [t + t * t / 4000 for t in lengths]

    def spread(attention_share, values):
        shares = schedule(lengths, 2, "packed", cap=12_000, attention_share=attention_share)
        sums = [sum(values[i] for i in share.samples) for share in shares]
        return max(sums) / np.mean(sums)

    assert spread(0.0, lengths) < 1.01
    assert spread(0.0, work) > 1.2
    assert spread(1 / 4000, work) < 1.02
    assert spread(1 / 4000, lengths) > 1.2


@pytest.mark.parametrize("seed", range(3))
def test_balance_and_packing_at_the_sizes_of_a_large_run(seed):
    lengths = np.random.default_rng(seed).lognormal(7, 1, 8192).clip(1, 32768).astype(int).tolist()
    sums = [sum(lengths[i] for i in b) for b in lpt(lengths, 64)]
    assert max(sums) / np.mean(sums) <= 1.0005
    (share,) = schedule(lengths, 1, "packed", cap=32768)
    assert len(share.micro_batches) <= 1.001 * -(-sum(lengths) // 32768)
