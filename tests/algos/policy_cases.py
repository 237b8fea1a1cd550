"""Random micro-batches, and the policy losses as the papers write them: sample by sample, token by token, in Python."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from rlrun.algos.losses import Tokens
from rlrun.algos.options import ImportanceOptions, LossOptions

PLAIN = LossOptions(
    kind="ppo_clip",
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=None,
    entropy_coef=0.0,
    kl_coef=0.0,
    kl_estimator="low_var",
    kl_unbiased=False,
    importance=None,
    opsm_delta=None,
)


def importance(correction="tis", level="token", low=0.5, high=1.5, veto=None) -> ImportanceOptions:
    return ImportanceOptions(correction, level, low, high, veto)


def random_tokens(seed: int, lengths=(7, 1, 12, 5, 15), spread: float = 0.3, gap: float = 0.2) -> Tokens:
    """About a third of the tokens has no weight, and one sequence none that has."""
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)

    def normal() -> torch.Tensor:
        return torch.randn(n, generator=generator, dtype=torch.float64)

    logprobs = -normal().abs() - 0.1
    weights = (normal().abs() + 0.01) * (normal() > -0.5)
    weights[lengths[0] : lengths[0] + lengths[1]] = 0
    old = logprobs + spread * normal()
    return Tokens(
        logprobs=logprobs,
        advantages=normal(),
        loss_weights=weights / weights.sum(),
        rollout_logprobs=old + gap * normal(),
        lengths=torch.tensor(lengths),
        old_logprobs=old,
        ref_logprobs=logprobs + spread * normal(),
        entropy=normal().abs(),
    )


def part(tokens: Tokens, sequences: list[int]) -> Tokens:
    """Some of the sequences, in this order."""
    ends = tokens.lengths.cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    index = torch.tensor([t for s in sequences for t in range(starts[s], ends[s])], dtype=torch.long)
    names = ("logprobs", "advantages", "loss_weights", "rollout_logprobs", "old_logprobs", "ref_logprobs", "entropy")
    chosen = {name: getattr(tokens, name)[index] for name in names if getattr(tokens, name) is not None}
    return replace(tokens, lengths=tokens.lengths[torch.tensor(sequences, dtype=torch.long)], **chosen)


def kl_by_the_book(d: float, kind: str) -> float:
    if kind == "k1":
        return d
    if kind == "k2":
        return d * d / 2
    k3 = math.exp(-d) - 1 + d
    return min(max(k3, -10.0), 10.0) if kind == "low_var" else k3


def loss_by_the_book(tokens: Tokens, options: LossOptions) -> dict[str, float]:
    """The loss and its parts, from the definitions alone."""
    ends = tokens.lengths.cumsum(0).tolist()
    total = {"pg_loss": 0.0, "kl_loss": 0.0, "entropy": 0.0}
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        rows = [t for t in range(start, end) if tokens.loss_weights[t] != 0]
        if not rows:
            continue
        new = [float(tokens.logprobs[t]) for t in rows]
        old = [float(tokens.old_logprobs[t]) for t in rows]
        roll = [float(tokens.rollout_logprobs[t]) for t in rows]
        drift = sum(o - n for o, n in zip(old, new, strict=True)) / len(rows)
        sequence_ratio = math.exp(-drift)
        for k, t in enumerate(rows):
            w, a = float(tokens.loss_weights[t]), float(tokens.advantages[t])
            ratio = math.exp(new[k] - old[k])
            low, high = 1 - options.clip_low, 1 + options.clip_high
            if options.kind == "cispo":
                pg = -min(max(ratio, low), high) * a * new[k]
            else:
                rho = sequence_ratio if options.kind == "gspo" else ratio
                pg = -min(rho, high) * a if a > 0 else -max(rho, low) * a
                if options.dual_clip is not None and a < 0:
                    pg = min(pg, -options.dual_clip * a)
            pg *= factor_by_the_book(old, roll, k, options)
            if options.opsm_delta is not None and a < 0 and drift > options.opsm_delta:
                pg = 0.0
            kl = kl_by_the_book(new[k] - float(tokens.ref_logprobs[t]), options.kl_estimator)
            total["pg_loss"] += w * pg
            total["kl_loss"] += w * kl * (ratio if options.kl_unbiased else 1)
            total["entropy"] += w * float(tokens.entropy[t])
    total["loss"] = total["pg_loss"] - options.entropy_coef * total["entropy"] + options.kl_coef * total["kl_loss"]
    return total


def factor_by_the_book(old: list[float], roll: list[float], k: int, options: LossOptions) -> float:
    i = options.importance
    if i is None:
        return 1.0
    gaps = [o - r for o, r in zip(old, roll, strict=True)]
    if i.veto is not None and any(math.exp(g) < i.veto for g in gaps):
        return 0.0
    w = math.exp({"token": gaps[k], "sequence": sum(gaps), "geometric": sum(gaps) / len(gaps)}[i.level])
    inside = i.low <= w <= i.high
    return {"tis": min(max(w, i.low), i.high), "icepop": w if inside else 0, "mask": float(inside), "none": 1}[
        i.correction
    ]
