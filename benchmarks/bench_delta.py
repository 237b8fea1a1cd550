"""Delta weight sync against plain references in one process: bytes against the entropy bound, GB/s, their ratio.

    python benchmarks/bench_delta.py

128 Mi bf16 elements (268 MB), of which a share moves by one unit in the last place: spread evenly, or in rows of 4096
of which one in ten is touched ("rows"). References: `torch.nonzero` with int32 positions and the new values, and the
xor of both versions through zlib and, where pyarrow is installed, zstd, each at level 1.

Bound: n H(p) bits for evenly spread positions, and the values as they are; "rows" has the bound of its two levels. A
format that sends steps of one unit instead of values could do with n (H(p) + p) bits ("steps"), but can neither be
applied twice nor mend what is wrong. GB/s are of the tensor's own bytes, on one core or one GPU. "all" is what a
sender does for an update: encode, fingerprint, frames; "check" is what an engine does before it applies.
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

from rlrun.weight_sync.delta import Delta, Update, apply, encode, fingerprint, write_update

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


def best_of(function: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """Seconds of the fastest run, and its result."""
    fastest, result = float("inf"), None
    for _ in range(repeats):
        synchronize()
        began = time.perf_counter()
        result = function()
        synchronize()
        fastest = min(fastest, time.perf_counter() - began)
    return fastest, result


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


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
    """Bytes of positions and values, and of positions and signs of steps."""
    if kind == "even":
        positions = ELEMENTS * entropy(changed / ELEMENTS) / 8
    else:
        inside = ELEMENTS * TOUCHED_ROWS * entropy(density / TOUCHED_ROWS) / 8
        positions = inside + ELEMENTS / ROW * entropy(TOUCHED_ROWS) / 8
    return positions + 2 * changed, positions + changed / 8


def sender(old: torch.Tensor, new: torch.Tensor) -> list:
    return list(write_update([("w", encode(old, new), fingerprint(new))], 0, 1, BUCKET))


def bench_sizes(kind: str, density: float) -> None:
    old, new = make(kind, density)
    delta = encode(old, new)
    bound, steps = bounds(kind, density, delta.changed)
    xor = xor_bytes(old, new)
    packed = {"zlib": len(zlib.compress(xor, 1))}
    if pyarrow:
        packed["zstd"] = len(pyarrow.Codec("zstd", compression_level=1).compress(xor))
    others = {"int32": 6 * delta.changed, **packed}
    columns = "".join(f"{f'{size / 1e6:.2f}':>9}{f'{size / delta.nbytes:.2f}x':>7}" for size in others.values())
    print(
        f"{f'{kind} {100 * density:g} %':<12}{bound / 1e6:>8.2f}{delta.nbytes / 1e6:>8.2f}"
        f"{100 * (delta.nbytes / bound - 1):>+7.2f} %{columns}{steps / 1e6:>9.2f}"
    )


def bench_speed(kind: str, density: float) -> None:
    old, new = make(kind, density)
    rate = new.numel() * new.element_size() / 1e9

    def run(function: Callable[[], Any]) -> tuple[float, Any]:
        seconds, result = best_of(function)
        return rate / seconds, result

    encode_rate, delta = run(lambda: encode(old, new))
    plain_encode_rate, (positions, values) = run(lambda: plain_encode(old, new))
    all_rate, frames = run(lambda: sender(old, new))
    target = old.clone()
    plain_rate, _ = run(lambda: plain_apply(target, positions, values))
    assert torch.equal(target.view(torch.int16), new.view(torch.int16))
    target.copy_(old)
    update = Update.read(frames)
    check_rate, _ = run(lambda: update.check({"w": target}, 0))
    apply_rate, _ = run(lambda: apply_delta(target, delta))
    assert torch.equal(target.view(torch.int16), new.view(torch.int16))
    print(
        f"{f'{kind} {100 * density:g} %':<12}{encode_rate:>9.2f}{plain_encode_rate:>9.2f}"
        f"{encode_rate / plain_encode_rate:>7.2f}x{all_rate:>9.2f}{check_rate:>9.2f}"
        f"{apply_rate:>9.1f}{plain_rate:>9.1f}{apply_rate / plain_rate:>7.2f}x"
    )


def apply_delta(target: torch.Tensor, delta: Delta) -> None:
    apply(target, delta)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{ELEMENTS >> 20} Mi bf16 elements on {DEVICE}, sizes in MB\n")
    others = "".join(f"{name:>9}{'ratio':>7}" for name in ("int32", "xor zlib", *(("xor zstd",) if pyarrow else ())))
    print(f"{'changed':<12}{'bound':>8}{'ours':>8}{'above':>9}{others}{'steps':>9}")
    for case in CASES:
        bench_sizes(*case)
    print(
        f"\n{'GB/s':<12}{'encode':>9}{'plain':>9}{'ratio':>8}{'all':>9}{'check':>9}{'apply':>9}{'plain':>9}{'ratio':>8}"
    )
    for case in CASES:
        bench_speed(*case)


if __name__ == "__main__":
    main()
