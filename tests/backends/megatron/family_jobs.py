"""What the parity tests of the families run on every rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from torch import Tensor

from rlrun.backends.base import Rendezvous
from rlrun.data.types import TokenBatch
from rlrun.plan.types import RunPlan


def family(
    rendezvous: Rendezvous,
    plan: RunPlan,
    model_dir: str,
    sequences: list[np.ndarray],
    loss_weights: list[np.ndarray],
    with_gradients: bool = True,
) -> dict[str, Any]:
    """`logits` {sequence: [T - 1, V]}, `logprobs` {sequence: [T]} of the sequences of this data-parallel rank, where it
    reports; on rank 0 the exported `weights` and the `gradients` of sum(weights * logprobs) over all sequences."""
    from megatron_jobs import started

    from rlrun.backends.megatron import cpu, step

    with started(rendezvous, plan, model_dir) as trainer, cpu.shim():
        chosen = list(range(trainer.info.dp, len(sequences), plan.train.dp))
        batch = TokenBatch(tokens=[sequences[i] for i in chosen], micro_batches=[list(range(len(chosen)))])
        micro_batches = trainer._micro_batches(batch, train=False)
        result: dict[str, Any] = {"logits": {}, "logprobs": {}, "weights": exported(trainer)}
        vocab = plan.model.spec.vocab_size

        def collect(micro_batch: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Any]:
            logits = step.whole(_logits(trainer.model, micro_batch, hidden, vocab), micro_batch)
            return logits.sum(), step.no_tokens(logits), logits

        trainer.model.eval()
        with torch.no_grad():
            outputs = step.run(trainer.model, micro_batches, collect, forward_only=True)
        if trainer.info.reports:
            cuts = np.cumsum([len(sequences[i]) - 1 for i in chosen])[:-1]
            result["logits"] = dict(zip(chosen, np.split(outputs[0].numpy(), cuts), strict=True))
        logprobs = trainer.logprobs(batch)
        if trainer.info.reports:
            result["logprobs"] = dict(zip(chosen, logprobs, strict=True))
        if with_gradients:
            weights = torch.from_numpy(np.concatenate([loss_weights[i][1:] for i in chosen]))
            result["gradients"] = _gradients(trainer, micro_batches, weights)
        return result


def _logits(model: Any, micro_batch: Any, hidden: Tensor, vocab: int) -> Tensor:
    """[N, vocab] of the rows that predict a token, on every tensor-parallel rank."""
    from megatron.core.utils import get_model_config

    from rlrun.backends.megatron.logprobs import spread_hidden
    from rlrun.backends.megatron.mapping import unwrap

    rows = spread_hidden(hidden, get_model_config(model).sequence_parallel)[micro_batch.rows]
    own = rows @ unwrap(model).output_weight().T
    parts = [torch.empty_like(own) for _ in range(ps.get_tensor_model_parallel_world_size())]
    dist.all_gather(parts, own.contiguous(), group=ps.get_tensor_model_parallel_group())
    return torch.cat(parts, dim=1)[:, :vocab]


def _gradients(trainer: Any, micro_batches: list[Any], weights: Tensor) -> dict[str, np.ndarray]:
    from rlrun.backends.megatron import step

    trainer.model.train()
    trainer.model.zero_grad_buffer()

    def loss(weights: Tensor, micro_batch: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Any]:
        vocab = trainer.plan.model.spec.vocab_size
        logprobs, _ = step._token_logprobs(trainer.model, micro_batch, hidden, 1.0, vocab)
        value = (weights * logprobs).sum()
        return value, step.no_tokens(value), {}

    step.run(trainer.model, micro_batches, partial(loss, weights), forward_only=False)
    for parameter in trainer.model.parameters():
        parameter.data.copy_(parameter.main_grad)
    return exported(trainer)


def exported(trainer: Any) -> dict[str, np.ndarray]:
    from rlrun.backends.megatron import mapping

    named = mapping.export_weights(trainer.model, trainer.plan.model.spec)
    return {name: tensor.cpu().numpy() for name, tensor in named}
