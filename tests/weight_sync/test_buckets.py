from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.weight_sync.buckets import bucketize

DTYPES = [torch.float32, torch.bfloat16, torch.uint8]
TENSORS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES)), max_size=30)


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@given(shapes=TENSORS, cap=st.integers(1, 200))
def test_buckets_keep_the_order_and_the_cap(shapes, cap):
    named = [(f"w{i}", torch.zeros(n, dtype=dtype)) for i, (n, dtype) in enumerate(shapes)]
    buckets = list(bucketize(iter(named), cap))
    assert [name for bucket in buckets for name, _ in bucket] == [name for name, _ in named]
    assert all(tensor is named[int(name[1:])][1] for bucket in buckets for name, tensor in bucket)
    for bucket in buckets:
        assert bucket
        size = sum(nbytes(t) for _, t in bucket)
        assert size <= cap or (len(bucket) == 1 and size > cap)


@given(shapes=TENSORS, cap=st.integers(1, 200))
def test_no_two_neighbouring_buckets_would_fit_into_one(shapes, cap):
    named = [(f"w{i}", torch.zeros(n, dtype=dtype)) for i, (n, dtype) in enumerate(shapes)]
    buckets = list(bucketize(named, cap))
    for left, right in itertools.pairwise(buckets):
        assert sum(nbytes(t) for _, t in left) + nbytes(right[0][1]) > cap


def test_tensors_are_drawn_one_bucket_at_a_time():
    drawn = []

    def source():
        for i in range(6):
            drawn.append(i)
            yield f"w{i}", torch.zeros(10, dtype=torch.uint8)

    buckets = bucketize(source(), 20)
    next(buckets)
    assert drawn == [0, 1, 2]


MEMBERS = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from([None, "g", "h", "i"]), st.sampled_from([None, "x", "y"])),
    max_size=25,
)


def label(name: str, field: int) -> str | None:
    """Names are `<position>/<group>/<kind>`, with - for None."""
    part = name.split("/")[field]
    return None if part == "-" else part


@given(members=MEMBERS, cap=st.integers(1, 60))
def test_groups_stay_whole_kinds_apart_and_nothing_is_lost(members, cap):
    # A group's members have one kind, here none: a kind of two groups at once cannot be satisfied.
    named = [
        (f"{i}/{group or '-'}/{'-' if group else kind or '-'}", torch.zeros(n, dtype=torch.uint8))
        for i, (n, group, kind) in enumerate(members)
    ]
    sizes: dict[str, int] = {}
    for name, _ in named:
        if (group := label(name, 1)) is not None:
            sizes[group] = sizes.get(group, 0) + 1
    buckets = list(bucketize(iter(named), cap, sizes, lambda n: label(n, 1), lambda n: label(n, 2)))
    sent = [name for bucket in buckets for name, _ in bucket]
    assert sorted(sent) == sorted(name for name, _ in named)
    position = {name: i for i, bucket in enumerate(buckets) for name, _ in bucket}
    for group in sizes:
        assert len({position[name] for name in sent if label(name, 1) == group}) == 1
    for bucket in buckets:
        assert len({label(name, 2) for name, _ in bucket} - {None}) <= 1
        units = {label(name, 1) or name for name, _ in bucket}
        assert sum(nbytes(t) for _, t in bucket) <= cap or len(units) == 1
    alone = [name for name in sent if label(name, 1) is None]
    assert alone == [name for name, _ in named if label(name, 1) is None]  # order kept


def test_a_group_takes_the_place_of_its_last_member_and_later_tensors_need_not_wait():
    drawn = []

    def source():
        for name in ("a1", "x", "y", "a2", "z"):
            drawn.append(name)
            yield name, torch.zeros(4, dtype=torch.uint8)

    buckets = bucketize(source(), 8, {"a": 2}, lambda name: "a" if name.startswith("a") else None)
    assert [name for name, _ in next(buckets)] == ["x", "y"]
    assert drawn == ["a1", "x", "y", "a2"]
    assert [[name for name, _ in bucket] for bucket in buckets] == [["a1", "a2"], ["z"]]


def test_a_group_that_never_becomes_complete_is_not_swallowed():
    with pytest.raises(AssertionError, match="incomplete groups"):
        list(bucketize([("a1", torch.zeros(1))], 8, {"a": 2}, lambda name: "a"))
