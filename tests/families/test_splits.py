"""Cutting and joining weights: exact inverses, and the layout Megatron's layers read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.families.splits import Columns, Qkv, Replicated, Rows, Sections, Weight


def tensor(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(
    parts=st.sampled_from([1, 2, 4]),
    per_rank=st.integers(1, 3),
    queries=st.integers(1, 4),
    d=st.integers(1, 3),
    h=st.integers(1, 3),
)
def test_every_split_is_undone_by_its_merge(parts, per_rank, queries, d, h):
    groups = parts * per_rank
    q, k, v = tensor(groups * queries * d, h), -tensor(groups * d, h), tensor(groups * d, h) / 7
    gated = tensor(2 * groups * queries * d, h)
    cases = [
        (Replicated(), [tensor(d)]),
        (Columns(padded=True), [tensor(groups * d + queries, h)]),
        (Columns(), [tensor(groups)]),
        (Rows(), [tensor(h, groups * d)]),
        (Sections(), [tensor(groups * d, h), -tensor(groups * d, h)]),
        # Two tensors of three and of one section.
        (Sections((groups, groups * d, groups, groups)), [tensor(groups * (2 + d), h), -tensor(groups, h)]),
        (Sections((groups, groups * d)), [tensor(groups * (1 + d), 1, h)]),
        (Qkv(groups, d), [q, k, v]),
        (Qkv(groups, d), [q[:, 0], k[:, 0], v[:, 0]]),
        (Qkv(groups, d, gated=True), [gated, k, v]),
    ]
    for split, full in cases:
        shapes = [tuple(t.shape) for t in full]
        shards = [split.shard(full, rank, parts) for rank in range(parts)]
        assert {tuple(s.shape) for s in shards} == {split.shard_shape(shapes, parts)}
        joined = split.merge(shards, shapes)
        assert all(torch.equal(a, b) for a, b in zip(joined, full, strict=True))


def test_queries_keys_and_values_are_interleaved_by_group():
    q, k, v = tensor(4, 1), 10 + tensor(2, 1), 20 + tensor(2, 1)  # 2 groups of 2 query heads, head_dim 1
    assert Qkv(2, 1).shard([q, k, v], 0, 1)[:, 0].tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert Qkv(2, 1).shard([q, k, v], 1, 2)[:, 0].tolist() == [2, 3, 11, 21]


def test_a_gated_query_projection_alternates_in_hugging_face_and_is_stacked_in_megatron():
    # 1 group of 2 query heads, head_dim 2: HF rows are q0 q0 g0 g0 q1 q1 g1 g1.
    q, k, v = tensor(8, 1), 10 + tensor(2, 1), 20 + tensor(2, 1)
    assert Qkv(1, 2, gated=True).shard([q, k, v], 0, 1)[:, 0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 10, 11, 20, 21]


def test_more_ranks_than_groups_hold_runs_of_rows():
    q, k, v = tensor(4, 1), 10 + tensor(2, 1), 20 + tensor(2, 1)  # 1 group, head_dim 2
    shards = [Qkv(1, 2).shard([q, k, v], rank, 2)[:, 0].tolist() for rank in range(2)]
    assert shards == [[0, 1, 2, 3], [10, 11, 20, 21]]


def test_each_rank_holds_its_slice_of_every_section():
    gate, up = tensor(4, 1), 10 + tensor(4, 1)
    assert Sections().shard([gate, up], 1, 2)[:, 0].tolist() == [2, 3, 12, 13]
    fused = torch.cat([gate, up])
    assert Sections((4, 4)).shard([fused], 1, 2)[:, 0].tolist() == [2, 3, 12, 13]


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(AssertionError, match="3 rows do not divide by 2"):
        Columns().shard([tensor(3, 1)], 0, 2)


def test_a_weight_is_on_the_stage_of_its_layer():
    def stage(place):
        return Weight("w", {"w": (1,)}, Replicated(), place).stage([0, 3, 4])

    assert [stage(n) for n in (0, 2, 3, 4, 9)] == [0, 0, 1, 2, 2]
    assert (stage("first"), stage("last")) == (0, 2)
