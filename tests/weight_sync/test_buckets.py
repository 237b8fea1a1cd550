from __future__ import annotations

import itertools

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
