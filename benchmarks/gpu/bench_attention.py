"""The attention core: the kernel for ragged rows against one call a sample, in time and in peak memory.

    python benchmarks/gpu/bench_attention.py               # the table, on an NVIDIA GPU
    python benchmarks/gpu/bench_attention.py --tiny        # short rows on this CPU, where there is no such kernel

Heads of Qwen3-4B (32 of queries, 8 of keys, 128 wide) in bfloat16; forward and backward pass of one layer. `speed-up`
is the time of one call a sample over that of the one call for all of them. `peak/k` is what torch's allocator saw above
the inputs, in MiB a thousand tokens, for the one and the other: the same in every row when memory is linear in the
length. Context parallelism is shown as the work of one rank of `cp`, keys gathered already.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch

from rlrun.backends.megatron.attention import Pieces, attend, pieces, takes_ragged
from rlrun.data import zigzag

HEADS, GROUPS, WIDTH = 32, 8, 128
REPEATS = 5


@dataclass(frozen=True)
class Case:
    name: str
    lengths: tuple[int, ...]
    cp: int = 1


def mixed(total: int, shortest: int, longest: int) -> tuple[int, ...]:
    """Lengths between the two, evenly spread on a logarithmic scale, that sum to `total`; multiples of 16."""
    rng, lengths = np.random.default_rng(0), []
    while sum(lengths) < total:
        length = int(np.exp(rng.uniform(np.log(shortest), np.log(longest)))) // 16 * 16
        lengths.append(min(length, total - sum(lengths)))
    return tuple(lengths)


CASES = [
    Case("128 x 128", (128,) * 128),
    Case("16 x 1k", (1024,) * 16),
    Case("128 to 8k", mixed(16384, 128, 8192)),
    Case("128 to 2k", mixed(16384, 128, 2048)),
    Case("2 x 8k", (8192,) * 2),
    Case("1 x 8k", (8192,)),
    Case("1 x 16k", (16384,)),
    Case("1 x 32k", (32768,)),
    Case("128 to 8k", mixed(16384, 128, 8192), cp=2),
    Case("1 x 32k", (32768,), cp=2),
    Case("1 x 32k", (32768,), cp=4),
]
TINY = [Case("8 x 64", (64,) * 8), Case("1 x 512", (512,)), Case("1 x 512", (512,), cp=2)]


def tensors(parts: Pieces, device: torch.device) -> list[torch.Tensor]:
    sizes = ((sum(parts.queries), HEADS), (sum(parts.keys), GROUPS), (sum(parts.keys), GROUPS))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return [torch.randn(n, 1, h, WIDTH, device=device, dtype=dtype, requires_grad=True) for n, h in sizes]


def once(inputs: list[torch.Tensor], parts: Pieces, ragged: bool) -> None:
    for x in inputs:
        x.grad = None
    output = attend(*inputs, parts, None, ragged)
    output.backward(output.detach())


def measure(inputs: list[torch.Tensor], parts: Pieces, ragged: bool) -> tuple[float, float]:
    """(seconds of a forward and a backward pass, MiB above the inputs at the worst moment)."""
    cuda = inputs[0].is_cuda
    once(inputs, parts, ragged)
    for x in inputs:
        x.grad = None
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    began = time.perf_counter()
    for _ in range(REPEATS):
        once(inputs, parts, ragged)
    if cuda:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / REPEATS
    return seconds, (torch.cuda.max_memory_allocated() - held) / 2**20 if cuda else float("nan")


HEAD = (
    f"{'samples':<10} {'cp':>2} {'k tok':>7} {'apart ms':>9} {'ragged ms':>9} {'speed-up':>8} {'peak/k':>9} "
    f"{'ragged':>9}"
)


def row(case: Case, device: torch.device) -> str:
    parts = pieces(tuple(zigzag.filled(n, case.cp) for n in case.lengths), case.cp, case.cp - 1, device)
    inputs, tokens = tensors(parts, device), sum(parts.queries) / 1024
    apart, apart_mib = measure(inputs, parts, ragged=False)
    together, together_mib = measure(inputs, parts, True) if takes_ragged(inputs[0]) else (float("nan"),) * 2
    return (
        f"{case.name:<10} {case.cp:>2} {tokens:7.1f} {1e3 * apart:9.2f} {1e3 * together:9.2f} {apart / together:8.2f} "
        f"{apart_mib / tokens:9.1f} {together_mib / tokens:9.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="short rows on this CPU")
    tiny = parser.parse_args().tiny
    device = torch.device("cpu") if tiny else torch.device("cuda", torch.cuda.current_device())
    print(HEAD)
    for case in TINY if tiny else CASES:
        print(row(case, device), flush=True)


if __name__ == "__main__":
    main()
