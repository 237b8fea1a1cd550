"""Samples of one optimizer step and their schedule -> the batches that the trainer ranks are sent, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlrun.algos.weights import loss_weights
from rlrun.data.schedule import RankSchedule
from rlrun.data.types import Sample, TokenBatch, TrainBatch, ValueBatch


def make_token_batches(
    samples: Sequence[Sample], schedule: Sequence[RankSchedule], temperature: float
) -> list[TokenBatch]:
    """One batch a rank for a log-prob pass over `samples` (those whose lengths made `schedule`)."""
    return [
        TokenBatch([_tokens(samples, i) for i in rank.samples], [list(m) for m in rank.micro_batches], temperature)
        for rank in schedule
    ]


def make_train_batches(
    samples: Sequence[Sample],
    advantages: Sequence[np.ndarray],
    old_logprobs: Sequence[np.ndarray] | None,
    ref_logprobs: Sequence[np.ndarray] | None,
    schedule: Sequence[RankSchedule],
    aggregation: str,
    temperature: float,
    *,
    rollout_of: np.ndarray | None = None,
    loss_constant: int | None = None,
) -> list[TrainBatch]:
    """One batch a rank for one optimizer step on all of `samples`.

    `advantages`, `old_logprobs` (None when they are those of the step's own forward pass) and `ref_logprobs` (None
    without a KL in the loss): n arrays [T_i]; `aggregation` a key of `rlrun.algos.weights.LOSS_WEIGHTS`, with
    `rollout_of` [n] and `loss_constant` as there. A removed sample counts in the denominators and weighs nothing.
    """
    n = len(samples)
    assert sum(len(rank.samples) for rank in schedule) == n, "a schedule of other samples"
    assert len(advantages) == n, (len(advantages), n)
    assert old_logprobs is None or len(old_logprobs) == n
    assert ref_logprobs is None or len(ref_logprobs) == n
    weights = _weights(samples, aggregation, rollout_of, loss_constant)

    def per_token(values: Sequence[np.ndarray], rank: RankSchedule) -> list[np.ndarray]:
        for i in rank.samples:
            assert len(values[i]) == len(samples[i].tokens), f"sample {i}: {len(values[i])} values for its tokens"
        return [np.asarray(values[i], np.float32) for i in rank.samples]

    return [
        TrainBatch(
            tokens=[_tokens(samples, i) for i in rank.samples],
            micro_batches=[list(m) for m in rank.micro_batches],
            temperature=temperature,
            loss_weights=per_token(weights, rank),
            advantages=per_token(advantages, rank),
            old_logprobs=per_token(old_logprobs, rank) if old_logprobs is not None else [],
            ref_logprobs=per_token(ref_logprobs, rank) if ref_logprobs is not None else [],
            rollout_logprobs=per_token([s.rollout_logprobs for s in samples], rank),
        )
        for rank in schedule
    ]


def make_value_batches(
    samples: Sequence[Sample],
    old_values: Sequence[np.ndarray],
    returns: Sequence[np.ndarray],
    schedule: Sequence[RankSchedule],
    aggregation: str,
    *,
    rollout_of: np.ndarray | None = None,
    loss_constant: int | None = None,
) -> list[ValueBatch]:
    """One batch a rank for one optimizer step of the critic on all of `samples`; weights as `make_train_batches`."""
    weights = _weights(samples, aggregation, rollout_of, loss_constant)
    assert sum(len(rank.samples) for rank in schedule) == len(samples), "a schedule of other samples"

    def per_token(values: Sequence[np.ndarray], rank: RankSchedule) -> list[np.ndarray]:
        for i in rank.samples:
            assert len(values[i]) == len(samples[i].tokens), f"sample {i}: {len(values[i])} values for its tokens"
        return [np.asarray(values[i], np.float32) for i in rank.samples]

    return [
        ValueBatch(
            tokens=[_tokens(samples, i) for i in rank.samples],
            micro_batches=[list(m) for m in rank.micro_batches],
            loss_weights=per_token(weights, rank),
            old_values=per_token(old_values, rank),
            returns=per_token(returns, rank),
        )
        for rank in schedule
    ]


def scatter(
    results: Sequence[Sequence[np.ndarray]], schedule: Sequence[RankSchedule], lengths: Sequence[int]
) -> list[np.ndarray]:
    """The inverse of dealing: each rank's per-sample results [T_i], back in the order of the step's samples.

    A result of another length than its sample's is our own mistake and never passes: misaligned log-probs train
    silently wrong.
    """
    placed: dict[int, np.ndarray] = {}
    for share, values in zip(schedule, results, strict=True):
        assert len(values) == len(share.samples), f"{len(values)} results for {len(share.samples)} samples"
        for i, value in zip(share.samples, values, strict=True):
            assert len(value) == lengths[i], f"sample {i} has {lengths[i]} tokens and {len(value)} values"
            assert i not in placed, f"sample {i} was scheduled twice"
            placed[i] = value
    assert len(placed) == len(lengths), f"{len(placed)} of {len(lengths)} samples were scheduled"
    return [placed[i] for i in range(len(lengths))]


def _weights(
    samples: Sequence[Sample], aggregation: str, rollout_of: np.ndarray | None, loss_constant: int | None
) -> list[np.ndarray]:
    weights = loss_weights([s.loss_mask for s in samples], aggregation, rollout_of, loss_constant)
    return [w * np.float32(not s.removed) for w, s in zip(weights, samples, strict=True)]


def _tokens(samples: Sequence[Sample], i: int) -> np.ndarray:
    return np.asarray(samples[i].tokens, np.int64)
