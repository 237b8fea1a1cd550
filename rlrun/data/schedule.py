"""Lengths of the samples of a rollout -> optimizer steps, shares of the data-parallel ranks, micro-batches.

Three cuts, one after the other, and none of them changes what is learned, because weights and denominators are fixed
over a whole optimizer step first (`rlrun.algos.weights`):

1. `cut_steps`: whole prompt groups into optimizer steps. A group, and so the samples of one execution of an agent, is
   never in two steps.
2. Pack: micro-batches over all samples of a step, their number rounded up to what every rank needs alike.
3. Distribute: micro-batches dealt to the ranks, equally many to each, with nearly equal work.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.data import zigzag

Bins = list[list[int]]
Numbers = Sequence[int] | Sequence[float]


@dataclass(frozen=True)
class RankSchedule:
    """One data-parallel rank's share. `samples`: indices into the step's samples, each on exactly one rank;
    `micro_batches`: lists of positions in `samples`, in running order, each position once."""

    samples: tuple[int, ...]
    micro_batches: tuple[tuple[int, ...], ...]


def cut_steps(group_of: np.ndarray, groups_per_step: int | None) -> list[np.ndarray]:
    """The samples of each optimizer step, as indices: `groups_per_step` whole groups a step in order of first
    occurrence, or all of them in one step when it is None. The number of groups divides evenly."""
    _, first, group = np.unique(group_of, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))  # number of each group, in order of first occurrence
    size = groups_per_step or max(len(first), 1)
    assert len(first) % size == 0, f"{len(first)} groups do not form steps of {size}"
    step = order[group] // size
    return [np.flatnonzero(step == s) for s in range(len(first) // size)]


def schedule_step(
    lengths: Sequence[int],
    dp: int,
    *,
    batching: str,
    max_tokens_per_gpu: int | None,
    micro_batch_size: int | None,
    attention_share: float = 0.0,
    multiple: int = 1,
    cp: int = 1,
) -> list[RankSchedule]:
    """The schedule of samples with `lengths` tokens (each at least 1) for `dp` ranks; the same answer every time.

    packed: micro-batches of up to `max_tokens_per_gpu` tokens times `cp`, the context-parallel ranks that share one, as
    few as possible and evenly filled where that allows; a longer sample goes alone. The tokens that fill a sample up to
    equal parts for those ranks count.
    padded: up to `micro_batch_size` samples of similar length. An empty micro-batch appears only where the step has
    fewer samples than the ranks need micro-batches.

    Work is balanced with T + attention_share * T^2 for a sample of T tokens: 0 balances tokens. Every rank has the
    same number of micro-batches, and it is a multiple of `multiple` (what an interleaved pipeline asks for).
    """
    assert all(length > 0 for length in lengths), "a sample without tokens"
    lengths = [zigzag.filled(length, cp) for length in lengths] if cp > 1 else lengths
    work = [t + attention_share * t * t for t in lengths] if attention_share else lengths
    if batching == "packed":
        assert max_tokens_per_gpu is not None
        cap = cp * max_tokens_per_gpu
        bins = _pack(lengths, work, dp * multiple, cap)
        loads = [sum(work[i] for i in b) for b in bins]
        if attention_share:
            # One long sample outweighs whole micro-batches; dealing equally many of them cannot make up for that.
            hands = [[bins[b] for b in hand] for hand in deal(loads, dp)]
            other = _pack_each_rank(lengths, work, dp, multiple, cap)
            best = min(hands, other, key=lambda ranks: max(sum(work[i] for b in rank for i in b) for rank in ranks))
            return [_rank_schedule(rank) for rank in best]
    else:
        assert batching == "padded", batching
        assert micro_batch_size is not None
        bins = _chunks(lengths, dp * multiple, micro_batch_size)
        loads = [len(b) * max((work[i] for i in b), default=0) for b in bins]
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


def best_fit(lengths: Sequence[int], cap: int) -> Bins:
    """Like `first_fit`, but into the bin that it fills most; several times faster for many bins."""
    bins: Bins = []
    rooms: list[tuple[int, int]] = []  # (room, bin) of every bin with room, sorted
    for i, length in enumerate(lengths):
        at = bisect_left(rooms, (length, -1))
        if at == len(rooms):
            room, b = cap, len(bins)
            bins.append([])
        else:
            room, b = rooms.pop(at)
        bins[b].append(i)
        if room > length:
            insort(rooms, (room - length, b))
    return bins


def lpt(loads: Numbers, k: int) -> Bins:
    """Indices of `loads` in k bins of nearly equal sums: largest first, always into the bin with the least.

    Graham's LPT rule, at most 4/3 - 1/(3k) of the best possible largest sum; O(n log n + n log k).
    """
    bins: Bins = [[] for _ in range(k)]
    heap: list[tuple[float, int]] = [(0, b) for b in range(k)]
    replace = heapq.heapreplace
    for i in _largest_first(loads):
        load, b = heap[0]
        bins[b].append(i)
        replace(heap, (load + loads[i], b))
    return bins


def deal(loads: Numbers, k: int) -> Bins:
    """Like `lpt`, but into k bins of equally many items; `len(loads)` is a multiple of k. Largest first in each."""
    assert len(loads) % k == 0, (len(loads), k)
    bins: Bins = [[] for _ in range(k)]
    heap: list[tuple[float, int]] = [(0, b) for b in range(k)]
    for i in _largest_first(loads):
        load, b = heapq.heappop(heap)
        bins[b].append(i)
        if len(bins[b]) < len(loads) // k:
            heapq.heappush(heap, (load + loads[i], b))
    return bins


def _largest_first(loads: Numbers) -> list[int]:
    return np.argsort(-np.asarray(loads), kind="stable").tolist()


def _pack(lengths: Sequence[int], work: Numbers, multiple: int, cap: int) -> Bins:
    order = _largest_first(lengths)
    alone = [[i] for i in order if lengths[i] > cap]
    rest = order[len(alone) :]
    if not rest:
        return _filled_up(alone, multiple)
    # No packing has fewer bins than this. If evenly filled ones keep the cap, they are better than any other: every
    # rank then waits less for the slowest.
    fewest = -(-sum(lengths[i] for i in rest) // cap)
    count = _round_up(len(alone) + fewest, multiple)
    even = _even(rest, lengths, work, count - len(alone), cap)
    if even is not None:
        return alone + even
    bins = _tight(rest, lengths, fewest, len(alone), multiple, cap)
    needed = _round_up(len(alone) + len(bins), multiple)
    if needed > count:
        even = _even(rest, lengths, work, needed - len(alone), cap)
        if even is not None:
            return alone + even
    return _split(alone + bins, lengths, needed)


def _pack_each_rank(lengths: Sequence[int], work: Numbers, dp: int, multiple: int, cap: int) -> list[Bins]:
    """Samples dealt to the ranks by their work, then packed rank by rank, into as many micro-batches on each."""
    ranks = []
    for share in lpt(work, dp):
        bins = _pack([lengths[i] for i in share], [work[i] for i in share], multiple, cap)
        ranks.append([[share[j] for j in b] for b in bins])
    most = max(map(len, ranks))
    return [_split(bins, lengths, most) if len(bins) < most else bins for bins in ranks]


def _even(rest: list[int], lengths: Sequence[int], work: Numbers, count: int, cap: int) -> Bins | None:
    """`rest` in `count` bins of equal work, else of equal tokens; None when either has a bin above the cap."""
    for loads in (work, lengths) if work is not lengths else (lengths,):
        bins = [[rest[j] for j in b] for b in lpt([loads[i] for i in rest], count)]
        if max(sum(lengths[i] for i in b) for b in bins) <= cap:
            return bins
    return None


def _tight(rest: list[int], lengths: Sequence[int], fewest: int, alone: int, multiple: int, cap: int) -> Bins:
    """As few bins as best fit or, where that needs more than the bound, first fit finds. `rest` is longest first."""
    ordered = [lengths[i] for i in rest]
    bins = best_fit(ordered, cap)
    if _round_up(alone + len(bins), multiple) > _round_up(alone + fewest, multiple):
        bins = min(bins, first_fit(ordered, cap), key=len)
    return [[rest[j] for j in b] for b in bins]


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


def _filled_up(bins: Bins, multiple: int) -> Bins:
    return bins + [[] for _ in range(_round_up(len(bins), multiple) - len(bins))]


def _chunks(lengths: Sequence[int], multiple: int, size: int) -> Bins:
    count = _round_up(-(-len(lengths) // size), multiple)
    return [chunk.tolist() for chunk in np.array_split(np.array(_largest_first(lengths), np.int64), count)]


def _round_up(count: int, multiple: int) -> int:
    return max(-(-count // multiple), 1) * multiple


def _rank_schedule(bins: Bins) -> RankSchedule:
    samples = tuple(i for b in bins for i in b)
    ends = np.cumsum([len(b) for b in bins]).tolist()
    micro_batches = tuple(tuple(range(end - len(b), end)) for b, end in zip(bins, ends, strict=True))
    return RankSchedule(samples, micro_batches)
