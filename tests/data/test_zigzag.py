"""Cutting samples for context-parallel ranks: nothing is lost, work is equal, and the pieces are causal attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data import zigzag
from rlrun.data.schedule import schedule_step

sizes = st.integers(1, 5)


@st.composite
def rows(draw):
    """(lengths of the samples of a row, cp)."""
    cp = draw(sizes)
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
    return [zigzag.filled(length, cp) for length in lengths], cp


def test_two_ranks_have_the_outer_and_the_inner_chunks_of_every_sample():
    assert zigzag.mine([8, 4], 2, 0).tolist() == [0, 1, 6, 7, 8, 11]
    assert zigzag.mine([8, 4], 2, 1).tolist() == [2, 3, 4, 5, 9, 10]
    queries, keys, index = zigzag.prefixes([8, 4], 2, 1)
    assert (queries, keys) == ([2, 2, 1, 1], [4, 6, 2, 3])
    # Places in the two rows laid end to end, which are tokens 0 1 6 7 8 11 | 2 3 4 5 9 10.
    assert index.tolist() == [0, 1, 6, 7, *[0, 1, 6, 7, 8, 9], *[4, 10], *[4, 10, 11]]


@given(rows())
def test_cut_and_put_together_a_row_is_what_it_was(row):
    lengths, cp = row
    tokens = np.random.default_rng(0).permutation(sum(lengths))
    parts = [tokens[zigzag.mine(lengths, cp, rank)] for rank in range(cp)]
    assert {len(part) for part in parts} == {sum(lengths) // cp}
    assert np.array_equal(np.concatenate(parts)[zigzag.place(lengths, cp)], tokens)
    assert np.array_equal(np.concatenate(parts), tokens[zigzag.order(lengths, cp)])


@given(rows())
def test_every_rank_computes_as_many_pairs_and_together_all_of_causal_attention(row):
    lengths, cp = row
    sample, order = np.repeat(np.arange(len(lengths)), lengths), zigzag.order(lengths, cp)
    found, pairs = set(), []
    for rank in range(cp):
        queries, keys, index = zigzag.prefixes(lengths, cp, rank)
        mine = zigzag.mine(lengths, cp, rank)
        index = np.arange(sum(keys)) if index is None else index
        assert sum(queries) == len(mine)
        seen = 0
        for first, n, at, m in zip(np.cumsum([0, *queries]), queries, np.cumsum([0, *keys]), keys, strict=False):
            for i in range(n):
                visible = order[index[at : at + m - n + i + 1]]
                found |= {(int(mine[first + i]), int(key)) for key in visible}
                seen += len(visible)
        pairs.append(seen)
    assert len(set(pairs)) == 1
    expected = {(q, k) for q in range(sum(lengths)) for k in range(q + 1) if sample[q] == sample[k]}
    assert found == expected
    assert sum(pairs) == len(expected), "a pair was computed twice"


@given(st.integers(1, 10**6), sizes)
def test_a_sample_is_filled_up_to_equal_chunks_and_no_further(length, cp):
    padded = zigzag.filled(length, cp)
    assert 0 <= padded - length < max(2 * cp, 2)
    assert padded % cp == 0
    assert cp > 1 or padded == length


def test_a_sample_that_was_not_filled_up_is_no_row():
    with pytest.raises(AssertionError, match="a sample of 6 tokens has no 4 equal chunks"):
        zigzag.mine([6], 2, 0)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), sizes, st.integers(1, 4))
def test_a_packed_micro_batch_keeps_the_cap_on_every_rank_with_its_padding(lengths, cp, dp):
    shares = schedule_step(lengths, dp, batching="packed", max_tokens_per_gpu=24, micro_batch_size=None, cp=cp)
    for share in shares:
        for m in share.micro_batches:
            padded = [zigzag.filled(lengths[share.samples[j]], cp) for j in m]
            assert len(m) <= 1 or len(zigzag.mine(padded, cp, cp - 1)) <= 24
