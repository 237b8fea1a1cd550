"""A 64-bit fingerprint of a tensor's bytes that is linear in them, computed where the tensor lives.

The bytes are read as little-endian 32-bit words w_i (zeros behind the end), and

    F = sum of w_i * m_i  mod 2^64,  m_i odd and fixed:  m_i = A[i mod 2^14] * B[i / 2^14 mod 2^14] * C[i / 2^28]

the multilinear hash of Carter and Wegman, with tables A, B, C drawn once and for all. Two consequences:

* A change of any one word, so of any byte, always changes F: the difference is not a multiple of 2^32 and m_i is odd.
  Other changes go unnoticed with a chance between 2^-64 and 2^-32; nobody is meant to be kept from forging it.
* The fingerprint of a tensor after a sparse change follows from the one before and the changed elements alone
  (`shift`). An engine thus knows, before it writes anything, whether the result will be the trainer's tensor.

Words are taken as signed integers, as torch has them; mod 2^64 that is a fixed convention, not a loss.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

ROW_BITS = 14
ROW = 1 << ROW_BITS
CUDA_ROWS = 1 << 10
"""Rows taken at once on a GPU: 16 Mi words, 128 MiB of products."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer type that views an element of so many bytes."""


def fingerprint(tensor: Tensor, first_word: int = 0) -> Tensor:
    """int64 scalar on the tensor's device: F of its bytes in logical (row-major) order. Any dtype and shape.

    With `first_word`, what these bytes add to F of a larger tensor in which they begin at that word.
    """
    if not tensor.numel():
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if flat.storage_offset() % 4:
        flat = flat.clone()
    whole = flat.numel() // 4
    words, rest = flat[: 4 * whole].view(torch.int32), flat[4 * whole :]
    tables = _tables(tensor.device)
    head = min(-first_word % ROW, whole)
    tail = (whole - head) % ROW
    rows = _row_sums(words[head : whole - tail].view(-1, ROW), tables[0])
    row_numbers = torch.arange(len(rows), device=tensor.device) + (first_word + head) // ROW
    total = (rows * _row_multipliers(tables, row_numbers)).sum()
    for start, piece in ((0, words[:head]), (whole - tail, words[whole - tail :])):
        if piece.numel():
            total = total + _word_sum(piece, first_word + start, tables)
    if rest.numel():
        word = torch.zeros(4, dtype=torch.uint8, device=tensor.device)
        word[: rest.numel()] = rest
        total = total + _word_sum(word.view(torch.int32), first_word + whole, tables)
    return total


def shift(positions: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """int64 scalar: what `fingerprint` gains when the elements at flat `positions` (int64 [n]) turn from `old` into
    `new` ([n], integer views of the elements)."""
    size = new.element_size()
    if size == 8:
        positions = torch.stack([2 * positions, 2 * positions + 1], dim=1).view(-1)
        new, old, size = new.view(torch.int32), old.view(torch.int32), 4
    lane_bits = {1: 2, 2: 1, 4: 0}[size]
    lane, word = positions & ((1 << lane_bits) - 1), positions >> lane_bits  # a division takes several times as long
    gained = (_in_word(new, lane, size) - _in_word(old, lane, size)) << (8 * size * lane)
    return (gained * _multipliers(_tables(new.device), word)).sum()


def _in_word(values: Tensor, lane: Tensor, size: int) -> Tensor:
    """The elements as their word counts them: signed in its highest lane, else unsigned."""
    wide = values.to(torch.int64)
    return torch.where(lane == 4 // size - 1, wide, wide & ((1 << (8 * size)) - 1))


def _row_sums(rows: Tensor, table: Tensor) -> Tensor:
    """int32 [n, ROW] -> int64 [n], each row's sum of products with the table."""
    if rows.is_cuda:
        return _many_row_sums(rows, table)
    words, multipliers = rows.numpy(), table.numpy()
    sums = np.empty(len(words), np.int64)
    for i, row in enumerate(words):  # one row stays in the cache
        sums[i] = np.dot(row.astype(np.int64), multipliers)
    return torch.from_numpy(sums)


def _many_row_sums(rows: Tensor, table: Tensor) -> Tensor:
    """The same in few large operations."""
    parts = [(part * table).sum(1) for part in rows.split(CUDA_ROWS)]
    return torch.cat(parts) if parts else table.new_empty(0)


def _word_sum(words: Tensor, first: int, tables: Tensor) -> Tensor:
    return (words * _multipliers(tables, torch.arange(first, first + len(words), device=words.device))).sum()


def _multipliers(tables: Tensor, index: Tensor) -> Tensor:
    return tables[0].gather(0, index & (ROW - 1)) * _row_multipliers(tables, index >> ROW_BITS)


def _row_multipliers(tables: Tensor, row: Tensor) -> Tensor:
    return tables[1].gather(0, row & (ROW - 1)) * tables[2].gather(0, row >> ROW_BITS)


@functools.cache
def _tables(device: torch.device) -> Tensor:
    """[3, ROW] odd int64: the splitmix64 sequence from seed 0, lowest bit set. Part of the format."""
    with np.errstate(over="ignore"):
        z = np.arange(1, 3 * ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(z.view(np.int64).reshape(3, ROW)).to(device)
