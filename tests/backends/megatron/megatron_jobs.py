"""What the tests run on every rank. Results are numpy and plain values, because they travel through a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rlrun.backends.base import Rendezvous
from rlrun.backends.megatron.trainer import MegatronTrainer
from rlrun.data.types import TokenBatch, TrainBatch
from rlrun.plan.types import RunPlan


@contextmanager
def started(rendezvous: Rendezvous, plan: RunPlan, model_dir: str) -> Iterator[MegatronTrainer]:
    trainer = MegatronTrainer(plan)
    try:
        trainer.start(rendezvous, model_dir)
        yield trainer
    finally:
        trainer.close()


def share(batch: TokenBatch, dp: int, num_dp: int) -> Any:
    """The part of one data-parallel rank: every num_dp-th sample, in micro-batches of at most three, and one more
    micro-batch that is empty, as the last rank gets when samples do not divide."""
    chosen = list(range(dp, len(batch.tokens), num_dp))
    if num_dp == 1:
        return batch
    fields = [f for f in ("loss_weights", "advantages", "old_logprobs", "ref_logprobs", "rollout_logprobs")]
    parts = {f: [getattr(batch, f)[i] for i in chosen] for f in fields if getattr(batch, f, None)}
    local = list(range(len(chosen)))
    cuts = [local[:3], local[3:], []] if dp else [local[:1], local[1:2], local[2:]]
    return replace(batch, tokens=[batch.tokens[i] for i in chosen], micro_batches=cuts, **parts)


def exported(trainer: MegatronTrainer) -> dict[str, np.ndarray]:
    from rlrun.backends.megatron import cpu, mapping

    with cpu.shim():
        return {n: t.numpy() for n, t in mapping.export_weights(trainer.model, trainer.plan.model.spec)}


def train(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batches: list[TrainBatch]) -> dict[str, Any]:
    """Log-probs before, metrics of every step, weights after, log-probs of both models after."""
    with started(rendezvous, plan, model_dir) as trainer:
        dp = trainer.info.dp
        first = share(batches[0], dp, plan.train.dp)
        before = exported(trainer)
        logprobs = trainer.logprobs(first)
        metrics = [trainer.train_step(share(b, dp, plan.train.dp)).values for b in batches]
        return {
            "info": trainer.info,
            "before": before,
            "logprobs": logprobs,
            "metrics": metrics,
            "after": exported(trainer),
            "logprobs_after": trainer.logprobs(first),
            "reference_after": trainer.logprobs(first, "reference") if plan.algo.uses_reference else None,
        }


def gradients(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batch: TrainBatch) -> dict[str, Any]:
    """The loss, and the summed gradients under their Hugging Face names."""
    from rlrun.backends.megatron import cpu, mapping, step

    with started(rendezvous, plan, model_dir) as trainer, cpu.shim():
        trainer.model.zero_grad_buffer()
        micro_batches = trainer._micro_batches(share(batch, trainer.info.dp, plan.train.dp), train=True)
        spec = plan.model.spec
        metrics = step.run_train(trainer.model, micro_batches, batch.temperature, spec.vocab_size, plan.algo)
        for parameter in trainer.model.parameters():
            parameter.data.copy_(parameter.main_grad)
        return {"metrics": metrics, "gradients": exported(trainer)}
