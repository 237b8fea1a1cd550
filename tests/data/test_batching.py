from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.algos.advantages import grpo, spread
from rlrun.algos.weights import LOSS_WEIGHTS, loss_weights
from rlrun.data.batching import make_token_batches, make_train_batches, scatter
from rlrun.data.schedule import schedule_step
from rlrun.data.types import Sample

CAP, SIZE = 40, 3
lengths_of_a_step = st.lists(st.integers(1, 60), min_size=1, max_size=60)
ranks = st.integers(1, 9)
ways = st.sampled_from(["packed", "padded"])


def schedule(lengths, dp, batching):
    return schedule_step(lengths, dp, batching=batching, max_tokens_per_gpu=CAP, micro_batch_size=SIZE)


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


@pytest.mark.parametrize("aggregation", sorted(LOSS_WEIGHTS))
@given(lengths_of_a_step, ranks, ways, st.booleans())
def test_train_batches_hold_each_samples_own_values(aggregation, lengths, dp, batching, with_reference):
    samples = [make_sample(i, length) for i, length in enumerate(lengths)]
    advantages = spread(np.linspace(-1, 1, len(samples)), [s.loss_mask for s in samples])
    old = [s.rollout_logprobs + np.float32(0.5) for s in samples]
    ref = [s.rollout_logprobs - np.float32(0.5) for s in samples] if with_reference else None
    shares = schedule(lengths, dp, batching)
    rollout_of = np.arange(len(samples)) // 3
    samples[0].removed = True
    batches = make_train_batches(
        samples, advantages, old, ref, shares, aggregation, 1.0, rollout_of=rollout_of, loss_constant=7
    )
    # Of the whole step, whatever the ranks; the removed sample counts in it.
    weights = loss_weights([s.loss_mask for s in samples], aggregation, rollout_of, 7)
    weights[0] = 0 * weights[0]
    seen = []
    for batch, share in zip(batches, shares, strict=True):
        assert [len(m) for m in batch.micro_batches] == [len(m) for m in share.micro_batches]
        assert len(batch.ref_logprobs) == (len(batch.tokens) if with_reference else 0)
        for j, tokens in enumerate(batch.tokens):
            i = int(tokens[0]) // 1000
            seen.append(i)
            assert (tokens == samples[i].tokens).all()
            np.testing.assert_array_equal(batch.loss_weights[j], weights[i])
            np.testing.assert_array_equal(batch.advantages[j], advantages[i])
            np.testing.assert_array_equal(batch.old_logprobs[j], old[i])
            np.testing.assert_array_equal(batch.rollout_logprobs[j], samples[i].rollout_logprobs)
            if ref is not None:
                np.testing.assert_array_equal(batch.ref_logprobs[j], ref[i])
    assert sorted(seen) == list(range(len(samples)))


@given(lengths_of_a_step, ranks, ranks, ways, ways)
def test_the_weighted_sum_over_all_ranks_does_not_depend_on_the_schedule(lengths, dp, other_dp, batching, other):
    samples = [make_sample(i, length) for i, length in enumerate(lengths)]
    advantages = grpo(np.array([s.reward for s in samples]), np.arange(len(samples)) // 2, normalize_by_std=True)
    advantages = spread(advantages, [s.loss_mask for s in samples])

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
