"""Samples of one optimizer step -> a share for each data-parallel rank, cut into micro-batches. Pure and on the driver.

Pack first, distribute second: micro-batches are formed over all samples of the step, their number rounded up to a
multiple of dp, and only then dealt to the ranks, so every rank runs the same number of them. What is learned does not
depend on any of it: weights and denominators are fixed over the whole step first (`rlrun.algos.weights`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.algos.weights import loss_weights
from rlrun.data.types import Sample, TokenBatch, TrainBatch, ValueBatch

Bins = list[list[int]]


@dataclass(frozen=True)
class RankSchedule:
    """One data-parallel rank's share. `samples`: indices into the step's samples, each on exactly one rank;
    `micro_batches`: lists of positions in `samples`, in running order, each position once."""

    samples: tuple[int, ...]
    micro_batches: tuple[tuple[int, ...], ...]


def schedule_step(
    lengths: Sequence[int],
    dp: int,
    *,
    batching: str,
    max_tokens_per_gpu: int | None,
    micro_batch_size: int | None,
) -> list[RankSchedule]:
    """The schedule of samples with `lengths` tokens (each at least 1) for `dp` ranks; the same answer every time.

    packed: micro-batches of up to `max_tokens_per_gpu` tokens (times cp, if one is spread over context-parallel
    ranks), as few as first-fit decreasing needs and evenly filled where that allows; a longer sample goes alone.
    padded: up to `micro_batch_size` samples of similar length. An empty micro-batch appears only where the step has
    fewer samples than the ranks need micro-batches.
    """
    assert all(length > 0 for length in lengths), "a sample without tokens"
    if batching == "packed":
        assert max_tokens_per_gpu is not None
        bins = _pack(lengths, dp, max_tokens_per_gpu)
        loads = [sum(lengths[i] for i in b) for b in bins]
    else:
        assert batching == "padded", batching
        assert micro_batch_size is not None
        bins = _chunks(lengths, dp, micro_batch_size)
        loads = [len(b) * max((lengths[i] for i in b), default=0) for b in bins]
    return [_rank_schedule([bins[i] for i in rank]) for rank in deal(loads, dp)]


def first_fit(lengths: Sequence[int], cap: int) -> Bins:
    """Indices of `lengths` in bins of at most `cap`, each put into the first bin with room; a longer one goes alone."""
    bins: Bins = []
    room = np.zeros(len(lengths), np.int64)
    for i, length in enumerate(lengths):
        fits = room[: len(bins)] >= length
        first = int(fits.argmax()) if bins else 0
        if not bins or not fits[first]:
            first = len(bins)
            bins.append([])
            room[first] = cap
        bins[first].append(i)
        room[first] -= length
    return bins


def lpt(lengths: Sequence[int], k: int) -> Bins:
    """Indices of `lengths` in k bins of nearly equal sums: longest first, always into the bin with the least.

    Graham's LPT rule, at most 4/3 - 1/(3k) of the best possible largest sum; O(n log n + n log k).
    """
    bins: Bins = [[] for _ in range(k)]
    heap = [(0, b) for b in range(k)]
    for i in _longest_first(lengths):
        load, b = heap[0]
        bins[b].append(i)
        heapq.heapreplace(heap, (load + lengths[i], b))
    return bins


def deal(loads: Sequence[int], k: int) -> Bins:
    """Like `lpt`, but into k bins of equally many items; `len(loads)` is a multiple of k. Largest first in each."""
    assert len(loads) % k == 0, (len(loads), k)
    bins: Bins = [[] for _ in range(k)]
    heap = [(0, b) for b in range(k)]
    for i in _longest_first(loads):
        load, b = heapq.heappop(heap)
        bins[b].append(i)
        if len(bins[b]) < len(loads) // k:
            heapq.heappush(heap, (load + loads[i], b))
    return bins


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return np.argsort(-np.asarray(lengths, np.int64), kind="stable").tolist()


def _pack(lengths: Sequence[int], dp: int, cap: int) -> Bins:
    order = _longest_first(lengths)
    bins = [[order[j] for j in b] for b in first_fit([lengths[i] for i in order], cap)]
    count = _round_up(len(bins), dp)
    # With as many bins as these, evenly filled ones are better: every rank then waits less for the slowest.
    alone = [i for i in order if lengths[i] > cap]
    rest = order[len(alone) :]
    even = lpt([lengths[i] for i in rest], count - len(alone)) if rest else []
    even = [[rest[j] for j in b] for b in even]
    if rest and max(sum(lengths[i] for i in b) for b in even) <= cap:
        return [[i] for i in alone] + even
    return _split(bins, lengths, count)


def _split(bins: Bins, lengths: Sequence[int], count: int) -> Bins:
    """`count` bins: the fullest that can be split is halved until there are enough; then empty ones."""
    whole = [b for b in bins if len(b) == 1]
    heap = [(-sum(lengths[i] for i in b), b) for b in bins if len(b) > 1]
    heapq.heapify(heap)
    while heap and len(whole) + len(heap) < count:
        _, fullest = heapq.heappop(heap)
        for half in lpt([lengths[i] for i in fullest], 2):
            part = [fullest[j] for j in half]
            if len(part) > 1:
                heapq.heappush(heap, (-sum(lengths[i] for i in part), part))
            else:
                whole.append(part)
    bins = whole + [b for _, b in heap]
    return bins + [[] for _ in range(count - len(bins))]


def _chunks(lengths: Sequence[int], dp: int, size: int) -> Bins:
    count = _round_up(-(-len(lengths) // size), dp)
    return [chunk.tolist() for chunk in np.array_split(np.array(_longest_first(lengths), np.int64), max(count, dp))]


def _round_up(count: int, multiple: int) -> int:
    return max(-(-count // multiple), 1) * multiple


def _rank_schedule(bins: Bins) -> RankSchedule:
    samples = tuple(i for b in bins for i in b)
    ends = np.cumsum([len(b) for b in bins]).tolist()
    micro_batches = tuple(tuple(range(end - len(b), end)) for b, end in zip(bins, ends, strict=True))
    return RankSchedule(samples, micro_batches)


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
) -> list[TrainBatch]:
    """One batch a rank for one optimizer step on all of `samples`.

    `advantages`, `old_logprobs` (None when they are those of the step's own forward pass) and `ref_logprobs` (None
    without a KL in the loss): n arrays [T_i]; `aggregation` a key of `rlrun.algos.weights.LOSS_WEIGHTS`.
    """
    n = len(samples)
    assert sum(len(rank.samples) for rank in schedule) == n, "a schedule of other samples"
    assert len(advantages) == n, (len(advantages), n)
    assert old_logprobs is None or len(old_logprobs) == n
    assert ref_logprobs is None or len(ref_logprobs) == n
    weights = loss_weights([s.loss_mask for s in samples], aggregation)

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
) -> list[ValueBatch]:
    """One batch a rank for one optimizer step of the critic on all of `samples`; weights as `make_train_batches`."""
    weights = loss_weights([s.loss_mask for s in samples], aggregation)
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


def _tokens(samples: Sequence[Sample], i: int) -> np.ndarray:
    return np.asarray(samples[i].tokens, np.int64)
