"""Delta weight sync against plain references in one process: bytes against the entropy bound, GB/s, their ratio.

    python benchmarks/bench_delta.py

128 Mi bf16 elements (268 MB), of which a share moves by one unit in the last place: spread evenly, or in rows of 4096
of which one in ten is touched ("rows"). References: `torch.nonzero` with int32 positions and the new values, and the
xor of both versions through zlib and, where pyarrow is installed, zstd, each at level 1.

The bound of "whole" is n H(p) bits for evenly spread positions, and the values as they are; "rows" has the bound of its
two levels. The bound of "low bits" is n (H(p) + p) bits: no format can send these steps in less. GB/s are of the
tensor's own bytes, in time of one CPU core (what else runs on the machine does not count) or of one GPU. "update" is
what a sender does for one: encode, fingerprint, frames; "check" is what an engine does before it applies.

The last lines show what a small tensor costs, by itself and encoded together with others.
"""

from __future__ import annotations

import math
import os
import time
import zlib
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core for either

import torch

from rlrun.weight_sync.delta import Frame, Update, apply, encode, encode_all, write_update
from rlrun.weight_sync.delta.packs import PACK

try:
    import pyarrow
except ImportError:
    pyarrow = None

ELEMENTS, ROW = 128 << 20, 4096
REPEATS = 3
CASES = (("even", 0.001), ("even", 0.01), ("even", 0.03), ("even", 0.1), ("rows", 0.01), ("rows", 0.03))
TOUCHED_ROWS = 0.1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BUCKET = 512 << 20


def best_of(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the fastest run, and its result."""
    fastest, result = float("inf"), None
    for _ in range(REPEATS):
        began = now()
        result = function()
        fastest = min(fastest, now() - began)
    return fastest, result


def now() -> float:
    if DEVICE == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def make(kind: str, density: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    old = torch.empty(ELEMENTS // ROW, ROW, dtype=torch.bfloat16, device=DEVICE)
    new = torch.empty_like(old)
    for first in range(0, len(old), 1024):  # random numbers take more memory than weights
        rows = old[first : first + 1024]
        rows.copy_(torch.randn(rows.shape, generator=generator, device=DEVICE) * 0.02)
        moved = torch.rand(rows.shape, generator=generator, device=DEVICE)
        if kind == "rows":
            touched = torch.rand(len(rows), 1, generator=generator, device=DEVICE) < TOUCHED_ROWS
            moved = torch.where(touched, moved * TOUCHED_ROWS, 1.0)
        step = torch.randint(0, 2, rows.shape, generator=generator, device=DEVICE, dtype=torch.int16) * 2 - 1
        new[first : first + 1024].view(torch.int16).copy_(rows.view(torch.int16) + (moved < density) * step)
    return old.view(-1), new.view(-1)


def plain_encode(old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    where = (old.view(torch.int16) != new.view(torch.int16)).nonzero().squeeze(1)
    return where.to(torch.int32), new[where]


def plain_apply(target: torch.Tensor, positions: torch.Tensor, values: torch.Tensor) -> None:
    target[positions.long()] = values


def xor_bytes(old: torch.Tensor, new: torch.Tensor) -> memoryview:
    return memoryview((old.view(torch.int16) ^ new.view(torch.int16)).cpu().numpy()).cast("B")


def entropy(p: float) -> float:
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def bounds(kind: str, density: float, changed: int) -> tuple[float, float]:
    """Bytes of positions with whole values, and with the signs of steps."""
    if kind == "even":
        positions = ELEMENTS * entropy(changed / ELEMENTS) / 8
    else:
        inside = ELEMENTS * TOUCHED_ROWS * entropy(density / TOUCHED_ROWS) / 8
        positions = inside + ELEMENTS / ROW * entropy(TOUCHED_ROWS) / 8
    return positions + 2 * changed, positions + changed / 8


def sender(old: torch.Tensor, new: torch.Tensor, low_bits: bool = False) -> list[Frame]:
    return list(write_update(encode_all([("w", old, new)], low_bits), 0, 1, BUCKET))


def bench_sizes(kind: str, density: float) -> None:
    old, new = make(kind, density)
    whole, low = encode(old, new), encode(old, new, low_bits=True)
    xor = xor_bytes(old, new)
    others = [6 * whole.changed, len(zlib.compress(xor, 1))]
    if pyarrow:
        others.append(len(pyarrow.Codec("zstd", compression_level=1).compress(xor)))
    ours = "".join(
        f"{bound / 1e6:>9.2f}{delta.nbytes / 1e6:>8.2f}{100 * (delta.nbytes / bound - 1):>+7.1f} %"
        for delta, bound in zip((whole, low), bounds(kind, density, whole.changed), strict=True)
    )
    columns = "".join(f"{size / 1e6:>11.2f}{f'{size / low.nbytes:.2f}x':>7}" for size in others)
    print(f"{f'{kind} {100 * density:g} %':<12}{ours}{columns}")


def bench_speed(kind: str, density: float) -> None:
    old, new = make(kind, density)
    rate = new.numel() * new.element_size() / 1e9
    plain_s, (positions, values) = best_of(lambda: plain_encode(old, new))
    target = old.clone()
    plain_apply_s, _ = best_of(lambda: plain_apply(target, positions, values))
    assert torch.equal(target.view(torch.int16), new.view(torch.int16))
    for low_bits in (False, True):
        encode_s, delta = best_of(lambda: encode(old, new, low_bits=low_bits))  # noqa: B023
        sender_s, frames = best_of(lambda: sender(old, new, low_bits))  # noqa: B023
        target.copy_(old)
        update = Update.read(frames)
        check_s, _ = best_of(lambda: update.check({"w": target}, 0))  # noqa: B023
        apply_s, _ = best_of(lambda: apply(target, delta))  # noqa: B023
        assert torch.equal(target.view(torch.int16), new.view(torch.int16))
        print(
            f"{f'{kind} {100 * density:g} %':<12}{'low bits' if low_bits else 'whole':<10}{rate / encode_s:>7.2f}"
            f"{rate / plain_s:>8.2f}{plain_s / encode_s:>7.2f}x{rate / sender_s:>9.2f}{rate / check_s:>8.2f}"
            f"{rate / apply_s:>8.2f}{rate / plain_apply_s:>8.2f}{plain_apply_s / apply_s:>7.2f}x"
        )


def bench_small(count: int = 2000, elements: int = 4096) -> None:
    old, new = (tensor[: count * elements].view(count, elements) for tensor in make("even", 0.01))
    names = [f"w{i}" for i in range(count)]
    print()
    for pack, title in ((PACK, "in packs"), (0, "one by one")):
        target = old.clone()
        began = now()
        frames = list(write_update(encode_all(zip(names, old, new, strict=True), pack_elements=pack), 0, 1, BUCKET))
        sent = now()
        Update.read(frames).apply(dict(zip(names, target, strict=True)), 0)
        done = now()
        assert torch.equal(target.view(torch.int16), new.view(torch.int16))
        sizes = [len(frame.head) for frame in frames]
        print(
            f"{count} tensors of {elements} {title}: {1e6 * (sent - began) / count:.0f} us each to send, "
            f"{1e6 * (done - sent) / count:.0f} us to check and apply, {sum(sizes) / count:.0f} bytes of head"
        )


def main() -> None:
    torch.set_num_threads(1)
    print(f"{ELEMENTS >> 20} Mi bf16 elements on {DEVICE}, sizes in MB, ratios to low bits\n")
    names = ("int32", "xor zlib", *(("xor zstd",) if pyarrow else ()))
    others = "".join(f"{name:>11}{'ratio':>7}" for name in names)
    print(f"{'changed':<12}{'bound':>9}{'whole':>8}{'above':>9}{'bound':>9}{'low':>8}{'above':>9}{others}")
    for case in CASES:
        bench_sizes(*case)
    print(
        f"\n{'GB/s':<12}{'values':<10}{'encode':>7}{'plain':>8}{'ratio':>8}{'update':>9}{'check':>8}{'apply':>8}"
        f"{'plain':>8}{'ratio':>8}"
    )
    for case in CASES:
        bench_speed(*case)
    bench_small()


if __name__ == "__main__":
    main()
