"""Balancing and packing against plain references in one process: milliseconds, their ratio, how good the answer is.

    python benchmarks/bench_batching.py

Balance: `lpt` against Karmarkar-Karp differencing (what verl and slime run) and against a greedy that looks for the
emptiest rank each time. Schedule: `schedule_step` against first fit in the order given, the fullest micro-batch halved
until every rank has as many, dealt out round-robin. Pack: bins of one rank against plain first fit, in the order given
and longest first. Operations: `schedule_step` with a share of attention (Qwen3-4B's) against balancing tokens. Lengths
are lognormal (sigma 1). "spread" is the fullest rank over the mean; "lockstep" is the time of a step, when all ranks
wait for the slowest in each micro-batch, over the ideal.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rlrun.data.schedule import lpt, schedule_step

REPEATS = 3


def karmarkar_karp(lengths: list[int], k: int) -> list[list[int]]:
    """Largest differencing method: merge the two partial solutions with the largest spread, heavy against light."""
    serial = itertools.count()
    heap = []
    for i, length in enumerate(lengths):
        sets = [(length, [i])] + [(0, []) for _ in range(k - 1)]
        heap.append((-length, next(serial), sets))
    heapq.heapify(heap)
    while len(heap) > 1:
        one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        pairs = zip(one, reversed(other), strict=True)
        merged = sorted(((a + b, x + y) for (a, x), (b, y) in pairs), key=lambda s: -s[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], next(serial), merged))
    return [members for _, members in heap[0][2]]


def scanning_greedy(lengths: list[int], k: int) -> list[list[int]]:
    sums, bins = [0] * k, [[] for _ in range(k)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        emptiest = min(range(k), key=sums.__getitem__)
        bins[emptiest].append(i)
        sums[emptiest] += lengths[i]
    return bins


def plain_schedule(lengths: list[int], dp: int, cap: int) -> list[list[list[int]]]:
    """Micro-batches of each rank."""
    bins: list[list[int]] = []
    sums: list[int] = []
    for i, length in enumerate(lengths):
        for b in range(len(bins)):
            if sums[b] + length <= cap:
                bins[b].append(i)
                sums[b] += length
                break
        else:
            bins.append([i])
            sums.append(length)
    while len(bins) % dp:
        fullest = max((b for b in bins if len(b) > 1), key=lambda b: sum(lengths[i] for i in b))
        bins.remove(fullest)
        bins += [fullest[::2], fullest[1::2]]
    return [bins[rank::dp] for rank in range(dp)]


def best_of(function: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of the fastest run, and its result."""
    fastest, result = float("inf"), None
    for _ in range(REPEATS):
        began = time.perf_counter()
        result = function()
        fastest = min(fastest, time.perf_counter() - began)
    return 1e3 * fastest, result


def spread(lengths: list[int], ranks: list[list[int]]) -> float:
    sums = [sum(lengths[i] for i in rank) for rank in ranks]
    return max(sums) / (sum(sums) / len(sums))


def lockstep(lengths: list[int], ranks: list[list[list[int]]]) -> float:
    times = ([sum(lengths[i] for i in m) for m in rank] for rank in ranks)
    return sum(max(column) for column in zip(*times, strict=True)) / (sum(lengths) / len(ranks))


def lognormal(n: int, cap: int) -> list[int]:
    return np.random.default_rng(0).lognormal(7, 1, n).clip(1, cap).astype(int).tolist()


def bench_balance() -> None:
    print(
        f"{'balance n/k':<16}{'ours':>10}{'greedy':>12}{'ratio':>8}{'KK':>12}{'ratio':>8}   spread ours / greedy / KK"
    )
    for n, k in ((1024, 16), (4096, 32), (8192, 64)):
        lengths = lognormal(n, 32768)
        ours_ms, ours = best_of(lambda: lpt(lengths, k))  # noqa: B023
        greedy_ms, greedy = best_of(lambda: scanning_greedy(lengths, k))  # noqa: B023
        kk_ms, kk = best_of(lambda: karmarkar_karp(lengths, k))  # noqa: B023
        spreads = " / ".join(f"{spread(lengths, ranks):.5f}" for ranks in (ours, greedy, kk))
        print(
            f"{f'{n}/{k}':<16}{ours_ms:>7.2f} ms{greedy_ms:>9.1f} ms{greedy_ms / ours_ms:>7.1f}x"
            f"{kk_ms:>9.0f} ms{kk_ms / ours_ms:>7.0f}x   {spreads}"
        )


def bench_schedule() -> None:
    print(
        f"\n{'schedule n/dp/cap':<20}{'ours':>10}{'plain':>12}{'ratio':>8}   micro-batches (bound), lockstep ours/plain"
    )
    for n, dp, cap in ((256, 8, 8192), (1024, 16, 16384), (8192, 64, 32768), (8192, 1, 32768)):
        lengths = lognormal(n, cap)
        settings = {"batching": "packed", "max_tokens_per_gpu": cap, "micro_batch_size": None}
        ours_ms, shares = best_of(lambda: schedule_step(lengths, dp, **settings))  # noqa: B023
        plain_ms, plain = best_of(lambda: plain_schedule(lengths, dp, cap))  # noqa: B023
        ours = [[[share.samples[j] for j in m] for m in share.micro_batches] for share in shares]
        bound = -(-sum(lengths) // cap)
        counts = f"{sum(map(len, ours))} and {sum(map(len, plain))} ({bound})"
        print(
            f"{f'{n}/{dp}/{cap}':<20}{ours_ms:>7.2f} ms{plain_ms:>9.1f} ms{plain_ms / ours_ms:>7.1f}x"
            f"   {counts:<24}{lockstep(lengths, ours):.4f} / {lockstep(lengths, plain):.4f}"
        )


def bench_pack() -> None:
    print(f"\n{'pack n/cap':<20}{'ours':>10}{'first fit':>12}{'ratio':>8}{'decreasing':>13}{'ratio':>8}   bins (bound)")
    for n, cap in ((256, 8192), (1024, 16384), (8192, 32768)):
        lengths = lognormal(n, cap)
        settings = {"batching": "packed", "max_tokens_per_gpu": cap, "micro_batch_size": None}
        ours_ms, (share,) = best_of(lambda: schedule_step(lengths, 1, **settings))  # noqa: B023
        plain_ms, plain = best_of(lambda: plain_schedule(lengths, 1, cap)[0])  # noqa: B023
        sorted_ms, longest_first = best_of(lambda: plain_schedule(sorted(lengths)[::-1], 1, cap)[0])  # noqa: B023
        bound = -(-sum(lengths) // cap)
        counts = f"{len(share.micro_batches)}, {len(plain)} and {len(longest_first)} ({bound})"
        print(
            f"{f'{n}/{cap}':<20}{ours_ms:>7.2f} ms{plain_ms:>9.1f} ms{plain_ms / ours_ms:>7.1f}x"
            f"{sorted_ms:>10.1f} ms{sorted_ms / ours_ms:>7.1f}x   {counts}"
        )


def bench_operations() -> None:
    share_of_attention = 36 * 32 * 256 / (2 * 4.02e9)
    print(f"\n{'operations n/dp':<20}{'ours':>10}   spread of operations: balanced / by tokens")
    for n, dp, cap in ((512, 8, 32768), (8192, 64, 32768)):
        lengths = lognormal(n, cap)
        work = [t + share_of_attention * t * t for t in lengths]
        settings = {"batching": "packed", "max_tokens_per_gpu": cap, "micro_batch_size": None}
        by_tokens = schedule_step(lengths, dp, **settings)
        settings["attention_share"] = share_of_attention
        ms, by_work = best_of(lambda: schedule_step(lengths, dp, **settings))  # noqa: B023
        spreads = " / ".join(
            f"{spread(work, [list(s.samples) for s in shares]):.5f}" for shares in (by_work, by_tokens)
        )
        print(f"{f'{n}/{dp}':<20}{ms:>7.2f} ms   {spreads}")


if __name__ == "__main__":
    bench_balance()
    bench_schedule()
    bench_pack()
    bench_operations()
