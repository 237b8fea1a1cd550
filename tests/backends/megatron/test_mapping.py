"""Cutting and joining weights: exact inverses, and the layout Megatron's layers read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.engines


def tensor(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]),
    per_rank=st.integers(1, 3),
    queries=st.integers(1, 4),
    d=st.integers(1, 3),
    h=st.integers(1, 3),
)
def test_every_split_is_undone_by_its_merge(tp, per_rank, queries, d, h):
    from rlrun.backends.megatron.mapping import Columns, GateUp, Qkv, Replicated, Rows

    groups = tp * per_rank
    cases = [
        (Replicated(), [tensor(d)]),
        (Columns(padded=True), [tensor(groups * d + queries, h)]),
        (Rows(), [tensor(h, groups * d)]),
        (GateUp(), [tensor(groups * d, h), -tensor(groups * d, h)]),
        (Qkv(groups, d), [tensor(groups * queries * d, h), -tensor(groups * d, h), tensor(groups * d, h) / 7]),
    ]
    for split, full in cases:
        shards = [split.shard(full, rank, tp) for rank in range(tp)]
        assert len({s.shape for s in shards}) == 1
        joined = split.merge(shards, [tuple(t.shape) for t in full])
        assert all(torch.equal(a, b) for a, b in zip(joined, full, strict=True))


def test_queries_keys_and_values_are_interleaved_by_group():
    from rlrun.backends.megatron.mapping import Qkv

    q, k, v = tensor(4, 1), 10 + tensor(2, 1), 20 + tensor(2, 1)  # 2 groups of 2 query heads, head_dim 1
    assert Qkv(2, 1).shard([q, k, v], 0, 1)[:, 0].tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert Qkv(2, 1).shard([q, k, v], 1, 2)[:, 0].tolist() == [2, 3, 11, 21]


def test_the_expected_names_are_those_of_hugging_face(checkpoints):
    from dataclasses import replace

    from megatron_plans import SPEC
    from megatron_reference import load

    from rlrun.backends.megatron.mapping import hf_shapes

    for name, directory in checkpoints.items():
        shapes = hf_shapes(replace(SPEC, tied_embeddings=name == "tied"))
        expected = {n: tuple(p.shape) for n, p in load(directory).named_parameters()}
        assert list(shapes.items()) == list(expected.items())
