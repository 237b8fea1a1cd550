"""One step of supervised learning: rows of the data in place of generated samples, their likelihood as the loss.
Batches, token weights and optimizer steps are those of every other loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlrun.data.types import Group, Prompt, Sample
from rlrun.runtime.learn import Scores, groups_of, optimizer_step, parts, rollouts

if TYPE_CHECKING:
    from rlrun.runtime.loop import Run

MEANS = ("loss", "nll", "entropy", "grad_norm")
"""Metrics of an optimizer step that are averaged over those of a step of the loop."""


def step(run: Run) -> dict[str, float]:
    """Draws the rows of one step of the loop and learns them."""
    groups = [Group(row, [sample_of(row)]) for row in run.source.take(run.plan.batch.prompts_per_rollout)]
    samples = [group.samples[0] for group in groups]
    none = [np.zeros(len(s.tokens), np.float32) for s in samples]
    rollout_of = rollouts(samples, groups_of(groups))
    with run.phase("train"):
        steps = [
            optimizer_step(run, samples, none, Scores(None, None, None), chosen, rollout_of)
            for chosen in parts(run.plan, groups)
        ]
    metrics = {f"train/{name}": float(np.mean([s[name] for s in steps])) for name in MEANS if name in steps[0]}
    tokens = sum(len(s.tokens) for s in samples)
    return metrics | {
        "train/lr": steps[-1]["lr"],
        "train/tokens": float(sum(s.loss_mask.sum() for s in samples)),
        "train/optimizer_steps": float(run.optimizer_steps),
        "train/epoch": run.source.epochs,
        "perf/train_tokens_per_s": tokens / max(run.seconds["train"], 1e-9),
    }


def sample_of(row: Prompt) -> Sample:
    """The row as if the policy had given its response: only that is learned, and of the prompt nothing."""
    assert row.response_ids, f"row {row.prompt_id} has no response"
    tokens = np.array([*row.token_ids, *row.response_ids], np.int64)
    mask = np.zeros(len(tokens), np.int8)
    mask[len(row.token_ids) :] = 1
    return Sample(
        prompt_id=row.prompt_id,
        rollout_id=0,
        tokens=tokens,
        prompt_length=len(row.token_ids),
        loss_mask=mask,
        rollout_logprobs=np.zeros(len(tokens), np.float32),
        finish_reason="stop",
        policy_version=0,
    )
