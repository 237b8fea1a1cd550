"""GRPO advantages against a plain reference in the same process: milliseconds and their ratio.

    python benchmarks/bench_advantages.py

The reference is the usual implementation: rewards as [n, T] token rewards, summed, collected in a dict of lists by
group, normalised one sample at a time, and spread over [n, T] tokens again. Ours keeps one number a sample; the time
to spread it over the tokens of ragged samples, as batches are made, is shown beside it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch

from rlrun.algos.advantages import Scored, estimator, spread

REPEATS = 5


def plain_grpo(token_rewards: torch.Tensor, response_mask: torch.Tensor, group_ids: np.ndarray) -> torch.Tensor:
    """[n, T] -> [n, T]."""
    scores = token_rewards.sum(-1)
    members: dict[int, list[torch.Tensor]] = defaultdict(list)
    for i, group in enumerate(group_ids):
        members[group].append(scores[i])
    mean = {group: torch.stack(values).mean() for group, values in members.items()}
    std = {group: torch.stack(values).std() for group, values in members.items()}
    for i, group in enumerate(group_ids):
        scores[i] = (scores[i] - mean[group]) / (std[group] + 1e-6)
    return scores[:, None] * response_mask


def best_of(function: Callable[[], object]) -> tuple[float, object]:
    """Milliseconds of the fastest run, and its result."""
    fastest, result = float("inf"), None
    for _ in range(REPEATS):
        began = time.perf_counter()
        result = function()
        fastest = min(fastest, time.perf_counter() - began)
    return 1e3 * fastest, result


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'samples x tokens':<20}{'ours':>10}{'+ spread':>12}{'plain':>12}{'ratio':>8}   largest difference")
    for n, tokens in ((2048, 2048), (8192, 4096)):
        rng = np.random.default_rng(0)
        lengths = rng.lognormal(6, 1, n).clip(1, tokens).astype(int)
        masks = [np.ones(length, np.float32) for length in lengths]
        rewards, group_ids = rng.random(n).astype(np.float32), np.repeat(np.arange(n // 8), 8)
        rng.shuffle(group_ids)
        response_mask = (torch.arange(tokens)[None] < torch.from_numpy(lengths)[:, None]).float()
        token_rewards = torch.zeros(n, tokens)
        token_rewards[torch.arange(n), torch.from_numpy(lengths) - 1] = torch.from_numpy(rewards)

        scored = Scored(rewards, group_ids, np.arange(n), masks)
        estimate = estimator("grpo", normalize_by_std=True, gamma=1.0)
        ours_ms, ours = best_of(lambda: estimate(scored))  # noqa: B023
        spread_ms, _ = best_of(lambda: spread(ours, masks))  # noqa: B023
        plain_ms, plain = best_of(lambda: plain_grpo(token_rewards, response_mask, group_ids))  # noqa: B023
        gap = np.abs(plain[:, 0].numpy() - ours).max()
        total = ours_ms + spread_ms
        print(
            f"{f'{n} x {tokens}':<20}{ours_ms:>7.2f} ms{spread_ms:>9.2f} ms{plain_ms:>9.0f} ms{plain_ms / total:>7.0f}x"
            f"   {gap:.1e}"
        )


if __name__ == "__main__":
    main()
