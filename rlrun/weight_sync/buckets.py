"""Cuts a stream of named tensors into transfers of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Named = tuple[str, "Tensor"]


def _none(name: str) -> None:
    return None


def bucketize(
    named_tensors: Iterable[Named],
    bucket_bytes: int,
    group_sizes: Mapping[str, int] | None = None,
    together: Callable[[str], str | None] = _none,
    apart: Callable[[str], str | None] = _none,
) -> Iterator[list[Named]]:
    """Buckets of at most `bucket_bytes`, in the order given; a tensor, or a group, larger than that goes alone.

    `together` names the group of a tensor: its `group_sizes[group]` members travel in one bucket, in the place of the
    last of them. `apart` names a tensor's kind: no bucket has tensors of two kinds. None is no group, or no kind.

    Lazy: at most one bucket of tensors is held at a time, plus the tensor that did not fit, plus the groups of which
    some members have come and some have not.
    """
    assert bucket_bytes > 0, bucket_bytes
    bucket: list[Named] = []
    size, kind = 0, None
    for unit in _units(named_tensors, group_sizes or {}, together):
        nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in unit)
        kinds = {k for k in (apart(name) for name, _ in unit) if k is not None}
        assert len(kinds) <= 1, f"a group of tensors that must be kept apart: {[name for name, _ in unit]}"
        if bucket and (size + nbytes > bucket_bytes or (kind is not None and kinds - {kind})):
            yield bucket
            bucket, size, kind = [], 0, None
        bucket += unit
        size += nbytes
        kind = kinds.pop() if kinds else kind
    if bucket:
        yield bucket


def _units(
    named_tensors: Iterable[Named], group_sizes: Mapping[str, int], together: Callable[[str], str | None]
) -> Iterator[list[Named]]:
    """What travels in one piece: single tensors, and groups once they are complete."""
    waiting: dict[str, list[Named]] = {}
    for name, tensor in named_tensors:
        group = together(name)
        if group is None:
            yield [(name, tensor)]
            continue
        members = waiting.setdefault(group, [])
        members.append((name, tensor))
        if len(members) == group_sizes[group]:
            yield waiting.pop(group)
    assert not waiting, f"incomplete groups: {sorted(waiting)}"
