"""Small tensors are encoded together: a tensor costs about a millisecond of small operations whatever its size, and a
mixture of experts has tens of thousands.

A pack is some tensors of one dtype, end to end, at most `PACK` elements, or one tensor that is larger. It is one delta
and one record of an update; the fingerprint of its result covers all its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rlrun.weight_sync.delta.codec import SEGMENT, Changes, Delta, apply, decode, encode, integers
from rlrun.weight_sync.delta.fingerprint import fingerprint, shift

PACK = SEGMENT
"""Elements. With 0 every tensor goes by itself."""

OldAndNew: TypeAlias = tuple[str, Tensor | None, Tensor]


class Part(NamedTuple):
    name: str
    shape: tuple[int, ...]


class Encoded(NamedTuple):
    """A pack to be sent. `delta` has the shape of its only tensor, or [elements of all]; `result` is the `fingerprint`
    of all new elements."""

    parts: tuple[Part, ...]
    delta: Delta
    result: Tensor


@dataclass(frozen=True)
class Record:
    """A pack that was received: its tensors, their changes, and the fingerprint of all of them afterwards."""

    parts: tuple[Part, ...]
    delta: Delta
    fingerprint: int

    @property
    def name(self) -> str:
        others = len(self.parts) - 1
        return self.parts[0].name + (f" and {others} more packed with it" if others else "")

    def changes(self) -> Iterator[tuple[str, Changes]]:
        """The changes of each tensor, with positions within it; a tensor may come several times, or never. For an
        engine that holds slices. ValueError as in `decode`."""
        for changes in decode(self.delta):
            for part, first, end in self._bounds():
                piece = _within(changes, first, end)
                if piece.values.numel():
                    yield part.name, piece

    def result(self, targets: Mapping[str, Tensor]) -> Tensor:
        """int64 scalar: the fingerprint that the tensors would have after the changes. ValueError as in `decode`."""
        flat = self._flat(targets)
        # What is written over as a whole need not be read.
        all_dense = all(segment.position_bytes is None for segment in self.delta.segments)
        total = torch.zeros((), dtype=torch.int64, device=flat.device) if all_dense else fingerprint(flat)
        for changes in decode(self.delta, flat.device):
            total = total + _gain(changes, flat, all_dense)
        return total

    def write(self, targets: Mapping[str, Tensor]) -> None:
        """Applies the changes, in place."""
        if len(self.parts) == 1:
            apply(targets[self.parts[0].name], self.delta)
            return
        flat = self._flat(targets)
        apply(flat.view(targets[self.parts[0].name].dtype), self.delta)
        for part, first, end in self._bounds():
            target = targets[part.name].detach()
            target.copy_(flat[first:end].view(target.dtype).view(part.shape))

    def _flat(self, targets: Mapping[str, Tensor]) -> Tensor:
        return _joined([targets[part.name] for part in self.parts])

    def _bounds(self) -> Iterator[tuple[Part, int, int]]:
        ends = accumulate((prod(part.shape) for part in self.parts), initial=0)
        for part, (first, end) in zip(self.parts, pairwise(ends), strict=True):
            yield part, first, end


def encode_all(
    tensors: Iterable[OldAndNew], low_bits: bool = False, pack_elements: int = PACK, segment_elements: int = SEGMENT
) -> Iterator[Encoded]:
    """Packs of what turns old tensors into new ones, or of whole new ones where there is no old one. Lazy: holds one
    pack for each dtype. An old tensor may be on another device than the new one, to which it is then copied."""
    open_packs: dict[tuple, list[OldAndNew]] = {}
    sizes: dict[tuple, int] = {}
    for item in tensors:
        _, old, new = item
        key = (new.dtype, new.device, old is None)
        if key in open_packs and sizes[key] + new.numel() > pack_elements:
            yield _encode_pack(open_packs.pop(key), low_bits, segment_elements)
        pack = open_packs.setdefault(key, [])
        pack.append(item)
        sizes[key] = new.numel() + (sizes[key] if len(pack) > 1 else 0)
        if sizes[key] >= pack_elements:
            yield _encode_pack(open_packs.pop(key), low_bits, segment_elements)
    for pack in open_packs.values():
        yield _encode_pack(pack, low_bits, segment_elements)


def _encode_pack(pack: Sequence[OldAndNew], low_bits: bool, segment_elements: int) -> Encoded:
    dtype, device = pack[0][2].dtype, pack[0][2].device
    olds = [old.to(device, non_blocking=True) for _, old, _ in pack if old is not None]
    shape = pack[0][2].shape if len(pack) == 1 else (-1,)
    new = _joined([new for _, _, new in pack]).view(dtype).view(shape)
    old = _joined(olds).view(dtype).view(shape) if olds else None
    parts = tuple(Part(name, tuple(tensor.shape)) for name, _, tensor in pack)
    return Encoded(parts, encode(old, new, segment_elements, low_bits), fingerprint(new))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """[elements of all], as integers; a view when there is one, which is contiguous."""
    if len(tensors) == 1:
        return integers(tensors[0])
    return torch.cat([integers(tensor).to(tensors[0].device) for tensor in tensors])


def _within(changes: Changes, first: int, end: int) -> Changes:
    start, positions, values, low_bits = changes
    if positions is None:
        values = values[max(first - start, 0) : max(end - start, 0)]
        return Changes(max(start, first) - first, None, values, low_bits)
    low, high = torch.searchsorted(positions, torch.tensor([first, end], device=positions.device)).tolist()
    return Changes(max(start, first) - first, positions[low:high] - first, values[low:high], low_bits)


def _gain(changes: Changes, flat: Tensor, all_dense: bool) -> Tensor:
    start, positions, values, _ = changes
    if positions is not None:
        old = flat.gather(0, positions)
        return shift(positions, changes.over(old), old)
    word = start * values.element_size() // 4
    gained = fingerprint(values, word)
    return gained if all_dense else gained - fingerprint(flat[start : start + values.numel()], word)
