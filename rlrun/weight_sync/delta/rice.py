"""Rice codes of the gaps between changed positions, in whole-tensor operations on any device.

A gap g (elements skipped since the last change) is cut into g >> k, written in unary, and its k low bits, written as
they are. With gaps of independent changes, which are geometric, this stays within 3 % of the entropy of the positions;
k = 0 is a bitmap, so dense changes need no other scheme. Real changes cluster (rows of an embedding, single experts):
each `GROUP` of changes has a k of its own, and the rare gap from one cluster to the next escapes. It is written in
full, its unary part being `ESCAPE`.

Unlike in the textbook, the parts are kept apart, so that nothing depends on where the previous code ended:

    k of each group, uint8 | low bits of full groups, by ascending k | low bits of the last group | unary parts
    | escaped gaps, int32

Low bits: whole bytes of k first, then the rest, eight values in as many bytes as they have bits left. Unary: as many
zeros and a one. All little-endian, every part a whole number of bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

GROUP = 256
"""Changes that share a k. One byte for 256 changes is under half a per cent of their codes."""
ESCAPE = 16
"""A gap with so many times 2^k escapes; with independent changes about one in 10^5 does."""
ESCAPED_BITS = 32
MAX_K = 31
"""Gaps are below 2^31; more would only come from bytes that are no code."""


def encode_gaps(gaps: Tensor) -> tuple[Tensor, int]:
    """int64 [n >= 1], each in [0, 2^31) -> bytes uint8 [*], and the length of the unary part in bits."""
    n = gaps.numel()
    assert n > 0
    rows = pad(gaps, (0, -n % GROUP)).view(-1, GROUP)
    k = best_k(rows, n)
    quotients = (rows >> k[:, None]).clamp_(max=ESCAPE).view(-1)[:n]
    ends = (quotients + 1).cumsum(0) - 1
    low = rows & ((1 << k) - 1)[:, None]
    unary_bits = int(ends[-1]) + 1
    unary = torch.zeros(unary_bits + -unary_bits % 8, dtype=torch.uint8, device=gaps.device)
    unary[ends] = 1
    host_k = k.cpu().numpy()
    parts = [k.to(torch.uint8)]
    for width, which, count in _blocks(host_k, n):
        values = low if which is None else low[_index(which, low.device)]
        parts.append(pack(values.reshape(-1)[:count], width))
    parts.append(pack_bits(unary))
    parts.append(gaps[nonzero(quotients == ESCAPE)].to(torch.int32).view(torch.uint8))
    return torch.cat(parts), unary_bits


def decode_gaps(code: Tensor, n: int, unary_bits: int) -> Tensor:
    """The inverse: int64 [n]. Raises ValueError, saying what, for bytes that `encode_gaps` cannot have made."""
    groups = -(-n // GROUP)
    if n < 1 or unary_bits < n or code.numel() < groups:
        raise ValueError(f"{code.numel()} bytes cannot hold {n} positions with {unary_bits} unary bits")
    host_k = code[:groups].cpu().numpy()
    if int(host_k.max()) > MAX_K:
        raise ValueError(f"a position width of {int(host_k.max())} bits; at most {MAX_K} are possible")
    low_end = groups + sum(width * count // 8 for width, _, count in _blocks(host_k, n))
    unary_end = low_end + -(-unary_bits // 8)
    escapes, odd = divmod(code.numel() - unary_end, ESCAPED_BITS // 8)
    if escapes < 0 or odd:
        raise ValueError(f"{code.numel()} bytes of positions where their widths need {unary_end} and whole escapes")
    ends = nonzero(unpack_bits(code[low_end:unary_end]))
    if ends.numel() != n or int(ends[-1]) != unary_bits - 1:
        raise ValueError(f"the unary part ends {ends.numel()} codes, not {n}, or not at its last bit")
    quotients = torch.diff(ends, prepend=ends.new_full((1,), -1)) - 1
    k = code[:groups].to(torch.int64)
    low = _unpack_low(code[groups:low_end], host_k, n)
    gaps = ((pad(quotients, (0, -n % GROUP)).view(-1, GROUP) << k[:, None]) | low).view(-1)[:n]
    escaped = nonzero(quotients >= ESCAPE)
    if escaped.numel() != escapes:
        raise ValueError(f"{escaped.numel()} gaps escape, {escapes} are there")
    if escapes:
        gaps[escaped] = code[unary_end:].clone().view(torch.int32).to(torch.int64)
        if int(gaps.min()) < 0:
            raise ValueError("an escaped gap is negative")
    return gaps


def _unpack_low(code: Tensor, host_k: np.ndarray, n: int) -> Tensor:
    """int64 [groups, GROUP], zero beyond the n-th."""
    rows = torch.zeros(len(host_k), GROUP, dtype=torch.int64, device=code.device)
    at = 0
    for width, which, count in _blocks(host_k, n):
        size = count * width // 8
        values = pad(unpack(code[at : at + size], count, width), (0, -count % GROUP)).view(-1, GROUP)
        if which is None:
            return values
        rows[_index(which, rows.device)] = values
        at += size
    return rows


def best_k(rows: Tensor, n: int) -> Tensor:
    """[groups, GROUP] gaps, zero beyond the n-th -> int64 [groups], the k with the fewest bits for each group, or
    nearly.

    Without escapes: of mean gap m, one bit more saves a group's bits when m / 2^k > 3, and costs some when
    m / 2^k <= 1. The number of bits is convex in k, so the best k is one of the three integers up to ceil(log2 m).

    With them, long gaps should not weigh on k. A group that would have some also tries what fits the mean of
    log2(g + 1), in which a tenth of long gaps counts for two bits.
    """
    counts = torch.full((len(rows), 1), GROUP, dtype=torch.int64, device=rows.device)
    counts[-1] = n - (len(rows) - 1) * GROUP
    top = (rows.sum(1, keepdim=True).to(torch.float64) / counts).clamp_(min=1).log2_().ceil_().to(torch.int64)
    candidates = torch.cat([top, top - 1, top - 2], 1).clamp_(min=0)
    bits = torch.cat([(rows >> k).sum(1, keepdim=True) for k in candidates.split(1, 1)], 1) + counts * candidates
    k = candidates.gather(1, bits.argmin(1, keepdim=True))
    escaping = nonzero((rows.amax(1, keepdim=True) >> k).squeeze(1) >= ESCAPE)
    if escaping.numel():
        rows, counts = rows[escaping], counts[escaping]
        typical = ((rows + 1).to(torch.float32).log2_().sum(1, keepdim=True) / counts).to(torch.int64)
        fewer = torch.cat([typical + 1, typical, typical - 1, typical - 2], 1).clamp_(min=0)
        candidates = torch.cat([candidates[escaping], fewer], 1)
        bits = torch.cat([_bits(rows, k) for k in candidates.split(1, 1)], 1) + counts * candidates
        k[escaping] = candidates.gather(1, bits.argmin(1, keepdim=True))
    return k.squeeze(1)


def _bits(rows: Tensor, k: Tensor) -> Tensor:
    """[groups, GROUP], [groups, 1] -> [groups, 1]: bits of the unary parts, without their ones, and of the escapes."""
    quotients = (rows >> k).clamp_(max=ESCAPE)
    return (quotients + (quotients == ESCAPE) * ESCAPED_BITS).sum(1, keepdim=True)


def pack(values: Tensor, width: int) -> Tensor:
    """int64 [8m] below 2^width -> uint8 [m * width]: whole low bytes, then what is left of eight values together."""
    parts = []
    while width >= 8:
        parts.append((values & 0xFF).to(torch.uint8))
        values, width = values >> 8, width - 8
    if width:
        eights = values.view(-1, 8)
        words = eights[:, 0].clone(memory_format=torch.contiguous_format)
        for j in range(1, 8):
            words |= eights[:, j] << (j * width)
        parts.append(words.view(torch.uint8).view(-1, 8)[:, :width].reshape(-1))
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=values.device)


def unpack(code: Tensor, count: int, width: int) -> Tensor:
    """The inverse of `pack`: int64 [count], count a multiple of 8."""
    values = torch.zeros(count, dtype=torch.int64, device=code.device)
    at = shift = 0
    while width >= 8:
        values |= code[at : at + count].to(torch.int64) << shift
        at, shift, width = at + count, shift + 8, width - 8
    if width:
        words = pad(code[at:].view(-1, width), (0, 8 - width)).contiguous().view(-1).view(torch.int64)
        eights = values.view(-1, 8)
        for j in range(8):
            eights[:, j] |= ((words >> (j * width)) & ((1 << width) - 1)) << shift
    return values


def pack_bits(bits: Tensor) -> Tensor:
    """uint8 [8m] of zeros and ones -> uint8 [m], the same as `pack` with width 1."""
    if bits.is_cuda:
        return pack(bits.to(torch.int64), 1)
    return torch.from_numpy(np.packbits(bits.numpy(), bitorder="little"))


def unpack_bits(code: Tensor) -> Tensor:
    """The inverse of `pack_bits`, as bool."""
    if code.is_cuda:
        return unpack(code, 8 * code.numel(), 1).to(torch.bool)
    return torch.from_numpy(np.unpackbits(code.numpy(), bitorder="little").view(np.bool_))


def nonzero(mask: Tensor) -> Tensor:
    """int64 [count], ascending. numpy's is several times as fast as torch's on a CPU."""
    if mask.is_cuda:
        return mask.nonzero().view(-1)
    return torch.from_numpy(np.flatnonzero(mask.numpy()))


def _blocks(host_k: np.ndarray, n: int) -> list[tuple[int, np.ndarray | None, int]]:
    """(k, groups, values) in the order of the low bits; no groups stands for all of them. A group cut short by the end
    comes last and alone, rounded up to eight values."""
    full = n // GROUP
    widths = np.unique(host_k[:full])
    if full == len(host_k) and len(widths) == 1:
        return [(int(widths[0]), None, n)]
    blocks: list[tuple[int, np.ndarray | None, int]] = []
    for width in widths:
        which = np.flatnonzero(host_k[:full] == width)
        blocks.append((int(width), which, len(which) * GROUP))
    if full < len(host_k):
        rest = n - full * GROUP
        blocks.append((int(host_k[-1]), np.array([full]), rest + -rest % 8))
    return blocks


def _index(which: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(which).to(device)
