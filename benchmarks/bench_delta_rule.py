"""The gated delta rule, forward and backward: our chunked one in torch, the recurrence token by token, and, on a GPU
with flash-linear-attention, its kernels. Milliseconds, tokens a second, and the largest difference of the outputs.

    python benchmarks/bench_delta_rule.py [--device cuda] [--threads N]

Sizes are those of one tensor-parallel rank of Qwen3.5: heads of 128 columns, twice as many value as key heads. The
second line of a size packs the same tokens as samples of different lengths.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rlrun.backends.megatron.delta_rule import gated_delta_rule, normalized

KEY_HEADS, VALUE_HEADS, COLUMNS = 2, 4, 128
REPEATS = 3


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, bounds: tuple[int, ...]) -> Tensor:
    """One step a token for all heads of a sample at once."""
    q, k = (normalized(x[0].float()).repeat_interleave(VALUE_HEADS // KEY_HEADS, 1) for x in (q, k))
    # Cut once: the backward pass of an index would fill a gradient of all tokens for every token.
    tokens = zip(*(x.unbind() for x in (q, k, v[0].float(), g[0].exp(), beta[0])), strict=True)
    outputs, first = [], set(bounds)
    for t, (qt, kt, vt, keep, rate) in enumerate(tokens):
        if t in first:
            state = vt.new_zeros(VALUE_HEADS, COLUMNS, COLUMNS)
        state = state * keep[:, None, None]
        update = rate[:, None] * (vt - (kt[:, None] @ state)[:, 0])
        state = state + kt[:, :, None] * update[:, None]
        outputs.append((qt[:, None] @ state)[:, 0])
    return torch.stack(outputs).unsqueeze(0) * COLUMNS**-0.5


def lengths_of(tokens: int, samples: int) -> tuple[int, ...]:
    """Bounds of samples whose lengths are as 1 : 2 : ... : samples."""
    weights = list(itertools.accumulate(range(samples + 1)))
    return tuple(tokens * w // weights[-1] for w in weights)


def timed(function: Callable[[], Tensor], inputs: list[Tensor], repeats: int) -> tuple[float, Tensor]:
    """Milliseconds of the fastest forward and backward pass, and the output."""
    fastest, cuda = float("inf"), inputs[0].is_cuda
    for _ in range(repeats):
        for x in inputs:
            x.grad = None
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        out = function()
        out.float().square().sum().backward()
        if cuda:
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - began)
    return 1e3 * fastest, out.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cuda = arguments.device == "cuda"
    has_fla = cuda and importlib.util.find_spec("fla") is not None
    dtype = torch.bfloat16 if cuda else torch.float32
    print(f"{arguments.device}, {dtype}, {KEY_HEADS} key and {VALUE_HEADS} value heads of {COLUMNS}")
    print(f"{'tokens':>7}{'samples':>9}   {'kernel':<10}{'ms':>10}{'tokens/s':>12}   difference")
    for tokens, samples in itertools.product((256, 1024) if not cuda else (1024, 4096, 16384), (1, 8)):
        torch.manual_seed(0)
        bounds = lengths_of(tokens, samples)
        shapes = [(KEY_HEADS, COLUMNS), (KEY_HEADS, COLUMNS), (VALUE_HEADS, COLUMNS)]
        inputs = [torch.randn(1, tokens, *shape, device=arguments.device, dtype=dtype) for shape in shapes]
        decay = -torch.rand(1, tokens, VALUE_HEADS, device=arguments.device)
        inputs += [decay, torch.rand(1, tokens, VALUE_HEADS, device=arguments.device)]
        inputs = [x.requires_grad_() for x in inputs]
        kernels: dict[str, Callable[[], Tensor]] = {"chunked": lambda: gated_delta_rule(*inputs, bounds)}  # noqa: B023
        if has_fla:
            kernels["fla"] = lambda: gated_delta_rule(*inputs, bounds, "fla")  # noqa: B023
        kernels["recurrent"] = lambda: recurrent(*inputs, bounds)  # noqa: B023
        first = None
        for name, function in kernels.items():
            ms, out = timed(function, inputs, 1 if name == "recurrent" else REPEATS)
            first = out if first is None else first
            gap = (out.float() - first.float()).abs().max().item() / first.abs().max().item()
            print(f"{tokens:>7}{samples:>9}   {name:<10}{ms:>10.1f}{1e3 * tokens / ms:>12,.0f}   {gap:.0e}")


if __name__ == "__main__":
    main()
