"""The fingerprint against its definition in Python integers, and the two properties that the package rests on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rlrun.weight_sync.delta.fingerprint as module
from rlrun.weight_sync.delta.codec import integers
from rlrun.weight_sync.delta.fingerprint import ROW, fingerprint, shift

SEEDS = st.integers(0, 2**32 - 1)
MASK = (1 << 64) - 1


def splitmix(index: int) -> int:
    z = (index + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31 | 1


def plain(data: bytes, first_word: int = 0) -> int:
    """By the definition, one word at a time; signed, as torch returns it."""
    data += bytes(-len(data) % 4)
    total = 0
    for i in range(len(data) // 4):
        word = int.from_bytes(data[4 * i : 4 * i + 4], "little", signed=True)
        at = i + first_word
        row = at // ROW
        total += word * splitmix(at % ROW) * splitmix(ROW + row % ROW) * splitmix(2 * ROW + row // ROW)
    total &= MASK
    return total - (1 << 64) if total >> 63 else total


@given(
    count=st.one_of(st.integers(0, 40), st.integers(4 * ROW - 9, 4 * ROW + 9)),
    first_word=st.sampled_from([0, 1, ROW - 3, ROW, 5 * ROW + 7, ROW * ROW - 2]),
    seed=SEEDS,
)
def test_it_is_the_sum_that_it_says(count, first_word, seed):
    data = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    assert int(fingerprint(torch.from_numpy(data), first_word)) == plain(data.tobytes(), first_word)


def test_parts_add_up_to_the_whole():
    data = torch.from_numpy(np.random.default_rng(0).integers(-9, 9, 8 * ROW + 100).astype(np.int16))
    cut = 2 * ROW - 22
    assert fingerprint(data) == fingerprint(data[:cut]) + fingerprint(data[cut:], cut // 2)


@given(
    dtype=st.sampled_from([torch.int8, torch.bfloat16, torch.float32, torch.float64]),
    count=st.integers(1, 300),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=SEEDS,
)
def test_it_follows_a_sparse_change(dtype, count, density, seed):
    rng = np.random.default_rng(seed)
    old, noise = (torch.from_numpy(rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)) for _ in range(2))
    old, new = integers(old.view(dtype)), integers(noise.view(dtype))
    where = torch.from_numpy(np.flatnonzero(rng.random(count) < density))
    after = old.clone()
    after[where] = new[where]
    assert fingerprint(after) == fingerprint(old) + shift(where, new[where], old[where])


def test_every_change_of_one_byte_is_noticed():
    data = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 13, dtype=np.uint8))
    before = int(fingerprint(data))
    for i in range(len(data)):
        for value in range(256):
            changed = data.clone()
            changed[i] = value
            assert (int(fingerprint(changed)) == before) == (value == data[i])


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_two_equal_changes_do_not_cancel(mask):
    data = torch.zeros(64, dtype=torch.uint8)
    seen = set()
    for i in range(64):
        for j in range(i):
            changed = data.clone()
            changed[[i, j]] ^= mask
            seen.add(int(fingerprint(changed)))
    assert len(seen) == 64 * 63 // 2
    assert 0 not in seen


def test_it_counts_in_row_major_order_whatever_the_strides():
    tensor = torch.arange(35.0).reshape(5, 7)
    assert fingerprint(tensor) == fingerprint(tensor.T.contiguous().T)
    assert fingerprint(tensor) != fingerprint(tensor.T)
    odd = torch.arange(41, dtype=torch.uint8)[1:]
    assert fingerprint(odd) == fingerprint(odd.clone())


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_are_summed_alike_on_cpu_and_gpu(rows, monkeypatch):
    monkeypatch.setattr(module, "CUDA_ROWS", 2)
    words = torch.from_numpy(np.random.default_rng(3).integers(-(2**31), 2**31, (rows, ROW)).astype(np.int32))
    table = module._tables(words.device)[0]
    assert torch.equal(module._many_row_sums(words, table), module._row_sums(words, table))


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 61, 4 * ROW + 3, 40 << 20])
def test_a_gpu_finds_the_same(count):
    data = torch.from_numpy(np.random.default_rng(2).integers(0, 256, count, dtype=np.uint8))
    assert int(fingerprint(data)) == int(fingerprint(data.cuda()))
