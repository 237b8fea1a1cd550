"""What changed between two versions of one tensor, as bytes: positions as Rice codes, values as they now are.

Elements are compared as integers of their size, so that every bit counts: -0.0 is not 0.0, and NaNs have payloads.
Values are absolute, not differences. Applying a delta twice is the same as once, and nothing drifts.

A tensor is cut into segments of 2^24 elements, which bounds the working memory and lets tensors be of any size. A
segment is sparse or, where that is smaller, dense. Its bytes, each part padded with zeros to a multiple of 8:

    sparse   Rice codes of the gaps between changed positions (`rice`) | the new elements there, whole or by their low
             bits (`values`)
    dense    all new elements

Sizes are in the `Segment`s, not in the bytes. Everything runs on the device of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.weight_sync.delta.fingerprint import INTEGERS
from rlrun.weight_sync.delta.rice import decode_gaps, encode_gaps, nonzero
from rlrun.weight_sync.delta.values import (
    ALIGN,
    LowBits,
    aligned,
    decode_low,
    encode_low,
    gaps_of,
    nearest,
    padded,
    positions_of,
    view_values,
)

SEGMENT = 1 << 24
"""Elements. At most 128 MiB of positions at a time."""
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
"""What weights and their scales come in; other dtypes are refused by name."""


@dataclass(frozen=True)
class Segment:
    """Consecutive elements of a tensor. `position_bytes` and `unary_bits` describe the Rice codes; a dense segment has
    no `position_bytes`. `changed` is the number of elements that differ; in a dense one without a base, all. `low` says
    how the values are written when they are not whole."""

    elements: int
    changed: int
    position_bytes: int | None
    unary_bits: int
    low: LowBits | None = None

    @classmethod
    def from_list(cls, fields: list) -> Segment:
        """From what `dataclasses.astuple` makes of it, by way of JSON. TypeError or ValueError for anything else."""
        elements, changed, position_bytes, unary_bits, low = fields
        numbers = [elements, changed, position_bytes or 0, unary_bits, *(low or ())]
        if not all(isinstance(number, int) and number >= 0 for number in numbers) or changed > elements:
            raise ValueError(f"no segment: {fields}")
        return cls(elements, changed, position_bytes, unary_bits, None if low is None else LowBits(*low))

    def nbytes(self, element_size: int) -> int:
        if self.position_bytes is None:
            return aligned(self.elements * element_size)
        if self.low is not None:
            return aligned(self.position_bytes) + self.low.nbytes(self.changed, element_size)
        return aligned(self.position_bytes) + aligned(self.changed * element_size)


@dataclass(frozen=True)
class Delta:
    """One tensor's changes. `payload` is uint8 [nbytes], on the device where it was made or received."""

    dtype: str
    shape: tuple[int, ...]
    segments: tuple[Segment, ...]
    payload: Tensor

    @property
    def changed(self) -> int:
        return sum(segment.changed for segment in self.segments)

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes(DTYPES[self.dtype].itemsize) for segment in self.segments)


class Changes(NamedTuple):
    """New elements within one segment: `values` [n], integers of the element's size, at flat `positions` int64 [n] of
    the tensor, ascending; without positions they are the n elements from `start` on. With `low_bits`, they are only so
    many bits of each."""

    start: int
    positions: Tensor | None
    values: Tensor
    low_bits: int | None = None

    def over(self, old: Tensor) -> Tensor:
        """The whole new elements, [n] integers, where `old` [n] were."""
        return self.values if self.low_bits is None else nearest(self.values, self.low_bits, old)


def encode(old: Tensor | None, new: Tensor, segment_elements: int = SEGMENT, low_bits: bool = False) -> Delta:
    """What turns `old` into `new`; all of `new` when there is no old one. Same shape, dtype and device. With `low_bits`
    values may be shortened as in `values`: then the result depends on what it is applied to, if that is not `old`."""
    dtype = dtype_name(new)
    assert dtype in DTYPES, dtype
    assert segment_elements % ALIGN == 0, segment_elements  # segments begin at whole words
    assert segment_elements < 1 << 31, segment_elements  # so are gaps
    assert old is None or (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    after = integers(new)
    before = None if old is None else integers(old)
    segments, parts = [], []
    for start in range(0, after.numel(), segment_elements):
        part = after[start : start + segment_elements]
        base = None if before is None else before[start : start + segment_elements]
        segment, encoded = _encode_segment(base, part, low_bits)
        segments.append(segment)
        parts += encoded
    payload = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=new.device)
    return Delta(dtype, tuple(new.shape), tuple(segments), payload)


def decode(delta: Delta, device: torch.device | None = None) -> Iterator[Changes]:
    """The changes, a segment at a time, on `device` (default: where the payload is); no position comes twice. Raises
    ValueError, saying what, when the payload contradicts the segments or itself."""
    integer = INTEGERS[DTYPES[delta.dtype].itemsize]
    total = sum(segment.elements for segment in delta.segments)
    if (total, delta.nbytes) != (prod(delta.shape), delta.payload.numel()):
        raise ValueError(
            f"segments of {total} elements and {delta.nbytes} bytes for {prod(delta.shape)} elements in "
            f"{delta.payload.numel()} bytes"
        )
    at = start = 0
    for segment in delta.segments:
        nbytes = segment.nbytes(integer.itemsize)
        code = delta.payload[at : at + nbytes].to(device or delta.payload.device)
        if segment.position_bytes is None:
            yield Changes(start, None, view_values(code, segment.elements, integer))
        elif segment.changed:
            gaps = decode_gaps(code[: segment.position_bytes], segment.changed, segment.unary_bits)
            positions = positions_of(gaps, segment.elements) + start
            yield from _decode_values(code[aligned(segment.position_bytes) :], segment, start, positions, integer)
        at, start = at + nbytes, start + segment.elements


def apply(target: Tensor, delta: Delta) -> None:
    """Writes the changes into `target`, in place. Same shape and dtype; any device and strides. ValueError as in
    `decode`, possibly with segments already written: see `stream` for all or nothing."""
    assert (dtype_name(target), tuple(target.shape)) == (delta.dtype, delta.shape)
    target = target.detach()
    flat = integers(target)
    for changes in decode(delta, target.device):
        start, positions, values, low_bits = changes
        if positions is None:
            flat[start : start + values.numel()] = values
        else:
            flat.scatter_(0, positions, values if low_bits is None else changes.over(flat.gather(0, positions)))
    if not target.is_contiguous():
        target.copy_(flat.view(target.dtype).view(target.shape))


def integers(tensor: Tensor) -> Tensor:
    """[numel], the elements as integers of their size: a view, unless the tensor is not contiguous."""
    integer = INTEGERS[tensor.element_size()]
    if not tensor.numel():  # may have strides that no view accepts
        return torch.empty(0, dtype=integer, device=tensor.device)
    return tensor.detach().contiguous().view(-1).view(integer)


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def changed_positions(before: Tensor, after: Tensor) -> Tensor:
    """int64 [n], ascending: where two flat integer tensors differ."""
    if before.is_cuda:
        return nonzero(before != after)
    return torch.from_numpy(_differing(before.numpy(), after.numpy()))


def _differing(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """On a CPU, 8 bytes at a time: a sparse change leaves few words to look into."""
    lanes = 8 // before.itemsize
    whole = before.size // lanes * lanes
    old, new = before[:whole].view(np.int64), after[:whole].view(np.int64)
    differs = old != new
    words = np.flatnonzero(differs) if np.count_nonzero(differs) < len(old) // 8 else None
    if words is None or lanes == 1:
        return np.flatnonzero(before != after)
    inside = np.flatnonzero((old[words] ^ new[words]).view(before.dtype))
    positions = words[inside // lanes] * lanes + inside % lanes
    return np.concatenate([positions, whole + np.flatnonzero(before[whole:] != after[whole:])])


def _encode_segment(before: Tensor | None, after: Tensor, low_bits: bool) -> tuple[Segment, list[Tensor]]:
    elements, size = after.numel(), after.element_size()
    if before is None:
        return Segment(elements, elements, None, 0), [padded(after.view(torch.uint8))]
    positions = changed_positions(before, after)
    changed = positions.numel()
    if not changed:
        return Segment(elements, 0, 0, 0), []
    # A position takes a bit at least: what cannot be smaller is not tried.
    if low_bits or changed * size + changed // 8 < elements * size:
        values = after.gather(0, positions)
        shortened = encode_low(before.gather(0, positions), values) if low_bits else None
        low, parts = shortened or (None, [padded(values.view(torch.uint8))])
        code, unary_bits = encode_gaps(gaps_of(positions))
        segment = Segment(elements, changed, code.numel(), unary_bits, low)
        if segment.nbytes(size) < aligned(elements * size):
            return segment, [padded(code), *parts]
    return Segment(elements, changed, None, 0), [padded(after.view(torch.uint8))]


def _decode_values(
    code: Tensor, segment: Segment, start: int, positions: Tensor, integer: torch.dtype
) -> Iterator[Changes]:
    if segment.low is None:
        yield Changes(start, positions, view_values(code, segment.changed, integer))
        return
    values, above, whole = decode_low(code, segment.low, segment.changed, integer)
    if above.numel():
        yield Changes(start, positions[above], whole)
        within = torch.ones(segment.changed, dtype=torch.bool, device=code.device)
        within[above] = False
        positions, values = positions[within], values[within]
    yield Changes(start, positions, values, segment.low.bits)
