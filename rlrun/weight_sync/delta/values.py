"""New values of changed elements by their low bits: shorter than whole values, and still harmless to apply twice.

Of every changed element, read as an integer, the low L bits are sent as they now are. They stand for the nearest number
that ends in them, from half of 2^L below the one held to just under half above. So L = 2 covers steps of one unit in
the last place, for which a whole bf16 value takes 16 bits. Elements that moved further are sent whole, as exceptions:

    low bits of all changed elements, L each (`rice.pack`) | Rice codes of the exceptions' gaps in the list of changes
    | the exceptions' whole new values

each part padded with zeros to a multiple of 8 bytes.

The number nearest to the new value that ends as it does is the new value: where the change was applied already, wholly
or in part, applying it again does nothing. Unlike whole values these need the old value, or the new one, to be there,
which the fingerprint of the result makes sure of.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlrun.weight_sync.delta.rice import decode_gaps, encode_gaps, nonzero, pack, unpack

ALIGN = 8
"""Bytes. The widest element, so that values can be viewed in place."""


@dataclass(frozen=True)
class LowBits:
    """How the values of a segment are written: `bits` of each, and so many exceptions, whose Rice codes have
    `position_bytes` and `unary_bits`."""

    bits: int
    exceptions: int
    position_bytes: int
    unary_bits: int

    def nbytes(self, changed: int, element_size: int) -> int:
        low = (changed + -changed % 8) // 8 * self.bits
        return aligned(low) + aligned(self.position_bytes) + aligned(self.exceptions * element_size)


def encode_low(old: Tensor, new: Tensor) -> tuple[LowBits, list[Tensor]] | None:
    """Integers [n >= 1] before and after, all of them different. None when whole values are no longer."""
    n, size = len(new), new.element_size()
    # L bits reach a step from -2^(L-1) to 2^(L-1) - 1, that is, one whose extent is below 2^(L-1).
    step = new.to(torch.int64) - old.to(torch.int64)
    extent = step ^ (step >> 63)
    bits = _best_bits(extent, 8 * size)
    if bits is None:
        return None
    low = new.to(torch.int64) & ((1 << bits) - 1)
    above = nonzero(extent >> (bits - 1) != 0)
    codes, unary_bits = torch.empty(0, dtype=torch.uint8, device=new.device), 0
    if above.numel():
        codes, unary_bits = encode_gaps(gaps_of(above))
    written = LowBits(bits, above.numel(), codes.numel(), unary_bits)
    if written.nbytes(n, size) >= aligned(n * size):
        return None
    values = new.gather(0, above).view(torch.uint8)
    return written, [padded(pack(pad(low, (0, -n % 8)), bits)), padded(codes), padded(values)]


def decode_low(code: Tensor, low: LowBits, changed: int, integer: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Low bits as integers [changed], and of the exceptions the indices among the changes and the whole values.
    ValueError, saying what, for bytes that `encode_low` cannot have made."""
    if not 0 < low.bits < 8 * integer.itemsize or code.numel() != low.nbytes(changed, integer.itemsize):
        raise ValueError(f"{code.numel()} bytes cannot hold {low.bits} bits of {changed} values")
    count = changed + -changed % 8
    values = unpack(code[: count // 8 * low.bits], count, low.bits)[:changed].to(integer)
    at = aligned(count // 8 * low.bits)
    above = torch.empty(0, dtype=torch.int64, device=code.device)
    if low.exceptions:
        gaps = decode_gaps(code[at : at + low.position_bytes], low.exceptions, low.unary_bits)
        above = positions_of(gaps, changed)
    whole = view_values(code[at + aligned(low.position_bytes) :], low.exceptions, integer)
    return values, above, whole


def nearest(low: Tensor, bits: int, held: Tensor) -> Tensor:
    """The integers nearest to `held` that end in these `bits`; all tensors of one integer type, which wraps."""
    step = (low - held) & ((1 << bits) - 1)
    return held + (step - ((step >> (bits - 1)) << bits))


def gaps_of(positions: Tensor) -> Tensor:
    """Elements skipped before each of these ascending positions."""
    return torch.diff(positions, prepend=positions.new_full((1,), -1)) - 1


def positions_of(gaps: Tensor, elements: int) -> Tensor:
    """The inverse; ValueError for one beyond `elements`."""
    # Before they are added up, which could overflow.
    if int(gaps.max()) < elements:
        positions = (gaps + 1).cumsum(0) - 1
        if int(positions[-1]) < elements:
            return positions
    raise ValueError(f"a position beyond {elements} elements")


def view_values(code: Tensor, count: int, integer: torch.dtype) -> Tensor:
    """The first `count` elements."""
    code = code[: count * integer.itemsize]
    if code.storage_offset() % integer.itemsize:
        code = code.clone()
    return code.view(integer)


def aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGN


def padded(code: Tensor) -> Tensor:
    return pad(code, (0, -code.numel() % ALIGN))


def _best_bits(extent: Tensor, width: int) -> int | None:
    """The L with the fewest bits in all, to within a guess at the exceptions' codes; None when that is `width`."""
    n = len(extent)
    needed = (extent.to(torch.float64) + 0.5).log2().floor().to(torch.int64) + 2
    fitting = torch.bincount(needed.clamp_(1, width), minlength=width + 1).cumsum(0).tolist()

    def cost(bits: int) -> float:
        above = n - fitting[bits]
        return n * bits + (above * (width + 2 + log2(n / above)) if above else 0)

    best = min(range(1, width), key=cost)
    return best if cost(best) < n * width else None
