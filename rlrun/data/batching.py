"""Which rank trains which sample, and in which micro-batch: decided once a step, on the driver, by pure functions.

Pack first, distribute second: samples become micro-batches whatever the number of ranks, then whole micro-batches are
dealt out, the same number to every rank, balanced by tokens. The loss does not depend on any of it, because every
token's weight is fixed before (`rlrun.algos.weights`).
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.algos.weights import loss_weights
from rlrun.data.types import Sample, TokenBatch, TrainBatch


@dataclass(frozen=True)
class RankSchedule:
    """One data-parallel rank's share. `samples` are indices into the step's samples; `micro_batches` are lists of
    positions in `samples`. An empty micro-batch only exists where a step has fewer samples than ranks."""

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
    """The shares of all dp ranks for samples of the given lengths (tokens). Deterministic.

    Every sample is in exactly one micro-batch; all ranks have equally many. packed: a micro-batch holds at most
    `max_tokens_per_gpu` tokens, unless it is a single longer sample. padded: at most `micro_batch_size` samples, of
    similar lengths.
    """
    if batching == "packed":
        assert max_tokens_per_gpu is not None
        bins = pack(lengths, max_tokens_per_gpu)
    else:
        assert micro_batch_size is not None
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
        bins = [order[i : i + micro_batch_size] for i in range(0, len(order), micro_batch_size)]
    return distribute(round_up(bins, lengths, dp), lengths, dp)


def pack(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Best-fit decreasing: sample indices in bins of at most `cap` tokens; a longer sample is a bin of its own.

    O(n log n) comparisons: open bins are kept sorted by the room left in them.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, -bin), ascending; on equal room the oldest bin is last
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        at = bisect.bisect_left(room, (lengths[i], -len(bins)))
        if at < len(room):
            left, negative = room.pop(at)
            bins[-negative].append(i)
            bisect.insort(room, (left - lengths[i], negative))
        else:
            bins.append([i])
            if lengths[i] < cap:
                bisect.insort(room, (cap - lengths[i], -(len(bins) - 1)))
    return bins


def round_up(bins: list[list[int]], lengths: Sequence[int], multiple: int) -> list[list[int]]:
    """Splits the largest bins in two until their number is a multiple; only when nothing can be split, adds empty ones."""
    heap = [(-sum(lengths[i] for i in b), n, b) for n, b in enumerate(bins)]
    heapq.heapify(heap)
    single: list[list[int]] = []
    serial = len(bins)
    while (len(heap) + len(single)) % multiple or not (heap or single):
        while heap and len(heap[0][2]) < 2:
            single.append(heapq.heappop(heap)[2])
        if not heap:
            single += [[] for _ in range(-len(single) % multiple or multiple * (not single))]
            break
        for half in _halves(heapq.heappop(heap)[2], lengths):
            heapq.heappush(heap, (-sum(lengths[i] for i in half), serial, half))
            serial += 1
    return [b for _, _, b in sorted(heap, key=lambda entry: entry[:2])] + single


def _halves(members: Sequence[int], lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Two non-empty parts of nearly equal token sums: longest first, each to the lighter part."""
    parts: tuple[list[int], list[int]] = ([], [])
    sums = [0, 0]
    for i in sorted(members, key=lambda i: (-lengths[i], i)):
        lighter = int(sums[1] < sums[0])
        parts[lighter].append(i)
        sums[lighter] += lengths[i]
    return parts


def distribute(bins: Sequence[Sequence[int]], lengths: Sequence[int], dp: int) -> list[RankSchedule]:
    """Deals bins to dp ranks, equally many to each: heaviest first, to the lightest rank that still has room."""
    assert len(bins) % dp == 0, (len(bins), dp)
    each = len(bins) // dp
    weights = [sum(lengths[i] for i in b) for b in bins]
    owned: list[list[Sequence[int]]] = [[] for _ in range(dp)]
    heap = [(0, rank) for rank in range(dp)]
    for n in sorted(range(len(bins)), key=lambda n: (-weights[n], n)):
        load, rank = heapq.heappop(heap)
        owned[rank].append(bins[n])
        if len(owned[rank]) < each:
            heapq.heappush(heap, (load + weights[n], rank))
    schedules = []
    for rank_bins in owned:
        samples = tuple(i for b in rank_bins for i in b)
        starts = np.cumsum([0, *(len(b) for b in rank_bins)]).tolist()
        micro_batches = tuple(tuple(range(a, b)) for a, b in zip(starts, starts[1:], strict=False))
        schedules.append(RankSchedule(samples, micro_batches))
    return schedules


def make_token_batches(
    samples: Sequence[Sample], schedule: Sequence[RankSchedule], temperature: float
) -> list[TokenBatch]:
    """One TokenBatch a dp rank, for a log-prob pass."""
    return [
        TokenBatch(
            tokens=[samples[i].tokens for i in share.samples],
            micro_batches=[list(m) for m in share.micro_batches],
            temperature=temperature,
        )
        for share in schedule
    ]


def make_train_batches(
    samples: Sequence[Sample],
    advantages: np.ndarray,
    old_logprobs: Sequence[np.ndarray],
    ref_logprobs: Sequence[np.ndarray] | None,
    schedule: Sequence[RankSchedule],
    aggregation: str,
    temperature: float,
) -> list[TrainBatch]:
    """One TrainBatch a dp rank, for one optimizer step on all of `samples`.

    advantages [n], one a sample, spread over its trained tokens. Loss weights are formed over all samples first.
    """
    masks = [np.asarray(s.loss_mask, np.float32) for s in samples]
    weights = loss_weights(masks, aggregation)
    batches = []
    for share in schedule:
        mine = share.samples
        batches.append(
            TrainBatch(
                tokens=[samples[i].tokens for i in mine],
                micro_batches=[list(m) for m in share.micro_batches],
                temperature=temperature,
                loss_weights=[weights[i] for i in mine],
                advantages=[masks[i] * np.float32(advantages[i]) for i in mine],
                old_logprobs=[np.asarray(old_logprobs[i], np.float32) for i in mine],
                ref_logprobs=[np.asarray(ref_logprobs[i], np.float32) for i in mine] if ref_logprobs is not None else [],
                rollout_logprobs=[np.asarray(samples[i].rollout_logprobs, np.float32) for i in mine],
            )
        )
    return batches


def scatter(
    results: Sequence[Sequence[np.ndarray]], schedule: Sequence[RankSchedule], lengths: Sequence[int]
) -> list[np.ndarray]:
    """Per-rank results back in the order of the samples.

    A result of the wrong length is our own mistake and never passes: misaligned log-probs train silently wrong.
    """
    placed: list[np.ndarray | None] = [None] * len(lengths)
    for share, values in zip(schedule, results, strict=True):
        assert len(values) == len(share.samples), f"{len(values)} results for {len(share.samples)} samples"
        for i, value in zip(share.samples, values, strict=True):
            assert len(value) == lengths[i], f"sample {i} has {lengths[i]} tokens and {len(value)} values"
            assert placed[i] is None, f"sample {i} was scheduled twice"
            placed[i] = value
    assert all(value is not None for value in placed), "a sample was not scheduled"
    return [value for value in placed if value is not None]
