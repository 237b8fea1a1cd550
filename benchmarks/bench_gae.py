"""GAE against a plain reference in the same process: milliseconds and their ratio.

    python benchmarks/bench_gae.py

The reference is the usual implementation: padded [n, T] tensors and a loop over time, backwards, one step for all
samples at once. Ours takes ragged arrays and gives ragged arrays back. The second line of a size has samples of
different lengths, most of them far from the longest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core for either

import numpy as np
import torch

from rlrun.algos.gae import gae

REPEATS = 5


def plain_gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, gae_lambda: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, T] float32, samples begin at 0 and are padded on the right."""
    with torch.no_grad():
        last, next_value, advantages = 0.0, 0.0, []
        for t in reversed(range(rewards.shape[1])):
            delta = rewards[:, t] + gamma * next_value - values[:, t]
            last = (delta + gamma * gae_lambda * last) * mask[:, t]
            next_value = values[:, t] * mask[:, t]
            advantages.append(last)
        result = torch.stack(advantages[::-1], dim=1)
        return result, (result + values) * mask


def best_of(function: Callable[[], object], repeats: int = REPEATS) -> tuple[float, object]:
    """Milliseconds of the fastest run, and its result."""
    fastest, result = float("inf"), None
    for _ in range(repeats):
        began = time.perf_counter()
        result = function()
        fastest = min(fastest, time.perf_counter() - began)
    return 1e3 * fastest, result


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'samples x tokens':<24}{'ours':>10}{'plain':>12}{'ratio':>8}   largest difference")
    for n, longest in ((64, 32768), (256, 8192)):
        for ragged in (False, True):
            rng = np.random.default_rng(0)
            lengths = rng.lognormal(np.log(longest) - 2, 1, n).clip(1, longest).astype(int) if ragged else [longest] * n
            values = [rng.standard_normal(length).astype(np.float32) for length in lengths]
            rewards = [(rng.standard_normal(length) / 10).astype(np.float32) for length in lengths]
            masks = [np.ones(length, np.float32) for length in lengths]
            padded = [torch.zeros(n, longest) for _ in range(3)]
            for tensor, arrays in zip(padded, (rewards, values, masks), strict=True):
                for row, array in zip(tensor, arrays, strict=True):
                    row[: len(array)] = torch.from_numpy(array)

            ours_ms, ours = best_of(lambda: gae(rewards, values, masks, gamma=1.0, gae_lambda=0.95))  # noqa: B023
            plain_ms, plain = best_of(lambda: plain_gae(*padded, 1.0, 0.95), 2)  # noqa: B023
            gap = max(np.abs(a - p[: len(a)].numpy()).max() for a, p in zip(ours[0], plain[0], strict=True))
            size = f"{n} x {'up to ' if ragged else ''}{longest}"
            print(f"{size:<24}{ours_ms:>7.1f} ms{plain_ms:>9.0f} ms{plain_ms / ours_ms:>7.0f}x   {gap:.1e}")


if __name__ == "__main__":
    main()
