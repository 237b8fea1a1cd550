"""Cuts a stream of named tensors into transfers of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def bucketize(named_tensors: Iterable[tuple[str, Tensor]], bucket_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Buckets of at most `bucket_bytes`, in the order given and without gaps; a tensor larger than that goes alone.

    Lazy: at most one bucket of tensors is held at a time, plus the tensor that did not fit.
    """
    assert bucket_bytes > 0, bucket_bytes
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in named_tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if bucket and size + nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += nbytes
    if bucket:
        yield bucket
