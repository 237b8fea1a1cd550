"""Which tokens of a sample each context-parallel rank has, as Megatron lays them out. Plain numpy.

A sample of L tokens, L a multiple of 2 * cp, is cut into 2 * cp equal chunks; rank r has chunk r and, behind it, chunk
2 * cp - 1 - r. Chunk j attends to j chunks before it and half of itself, so every rank has as many pairs of query and
key. Samples that are packed in one row are cut one by one, so that a rank's row has its part of the first sample, then
its part of the second. With cp 1 nothing is cut.

`lengths` are those of the samples of a row, padding included; `place` and `order` below are inverse to each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def multiple(cp: int) -> int:
    """What the length of every sample has to be a multiple of."""
    return 2 * cp if cp > 1 else 1


def filled(length: int, cp: int) -> int:
    """The length of a sample together with the padding that it needs."""
    return length + -length % multiple(cp)


def mine(lengths: Sequence[int], cp: int, rank: int) -> np.ndarray:
    """[sum(lengths) / cp] int64: the tokens of rank `rank`, in its order, by their places in the whole row."""
    if cp == 1:
        return np.arange(sum(lengths))
    starts = np.cumsum([0, *lengths[:-1]])
    parts = []
    for start, length in zip(starts, lengths, strict=True):
        chunk, rest = divmod(length, 2 * cp)
        assert rest == 0, f"a sample of {length} tokens has no {2 * cp} equal chunks"
        parts += [start + j * chunk + np.arange(chunk) for j in chunks(cp, rank)]
    return np.concatenate(parts)


def order(lengths: Sequence[int], cp: int) -> np.ndarray:
    """[sum(lengths)] int64: place in the whole row of each token of the ranks' rows, laid end to end."""
    return np.concatenate([mine(lengths, cp, rank) for rank in range(cp)])


def place(lengths: Sequence[int], cp: int) -> np.ndarray:
    """[sum(lengths)] int64: where each token of the whole row is in the ranks' rows, laid end to end. Divided by the
    length of a rank's row, it is the rank; the remainder is the place in its row."""
    there = order(lengths, cp)
    inverse = np.empty_like(there)
    inverse[there] = np.arange(len(there))
    return inverse


def chunks(cp: int, rank: int) -> tuple[int, ...]:
    """The chunks of a rank, in its order."""
    return (rank, 2 * cp - 1 - rank) if cp > 1 else (0,)


def prefixes(lengths: Sequence[int], cp: int, rank: int) -> tuple[list[int], list[int], np.ndarray | None]:
    """What attention has to compute on one rank: one piece for each of its chunks, in order.

    (queries [p], keys [p], index [sum(keys)]): piece i has `queries[i]` queries, which follow each other in the rank's
    row, and `keys[i]` keys, all of its sample up to its own last query; `index` says where those are in the ranks' rows
    laid end to end, and is None when they are the row itself.
    """
    if cp == 1:
        return list(lengths), list(lengths), None
    there, starts = place(lengths, cp), np.cumsum([0, *lengths[:-1]])
    queries, keys, index = [], [], []
    for start, length in zip(starts, lengths, strict=True):
        chunk = length // (2 * cp)
        for j in chunks(cp, rank):
            queries.append(chunk)
            keys.append((j + 1) * chunk)
            index.append(there[start : start + keys[-1]])
    return queries, keys, np.concatenate(index)
