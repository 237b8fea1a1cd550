"""Forward and backward passes over micro-batches, through Megatron's (pipeline) schedules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.utils import get_model_config
from torch import Tensor

from rlrun.algos.losses import Tokens, policy_loss
from rlrun.backends.megatron.logprobs import spread_hidden, token_logprobs
from rlrun.backends.megatron.mapping import unwrap
from rlrun.backends.megatron.microbatch import MicroBatch
from rlrun.plan.types import AlgoPlan


def run_logprobs(
    model: torch.nn.Module, micro_batches: list[MicroBatch], temperature: float, vocab_size: int
) -> list[np.ndarray]:
    """Log-probs [T_i] float32 of all samples, in the order of the batch; entry 0 is 0. Last stage; else empty."""
    model.eval()

    def collect(micro_batch: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor, Any]:
        logprobs, _ = _token_logprobs(model, micro_batch, hidden, temperature, vocab_size)
        return logprobs.sum(), no_tokens(logprobs), logprobs.cpu().numpy()

    with torch.no_grad():
        outputs = run(model, micro_batches, collect, forward_only=True)
    return by_sample(micro_batches, outputs)


def by_sample(micro_batches: list[MicroBatch], outputs: list[np.ndarray]) -> list[np.ndarray]:
    """What each micro-batch's rows gave -> one array [T_i] a sample, in the order of the batch; entry 0 is 0."""
    found: dict[int, np.ndarray] = {}
    for micro_batch, values in zip(micro_batches, outputs, strict=False):
        start = 0
        for sample, length in zip(micro_batch.samples, micro_batch.lengths, strict=True):
            found[sample] = np.concatenate([np.zeros(1, np.float32), values[start : start + length - 1]])
            start += length - 1
    return [found[i] for i in sorted(found)]


def run_train(
    model: torch.nn.Module, micro_batches: list[MicroBatch], temperature: float, vocab_size: int, algo: AlgoPlan
) -> dict[str, float]:
    """Adds the gradient of the loss, summed over micro-batches and all ranks, to the model's gradient buffers and
    reduces them. Returns the metrics of the loss, the same on every rank: sums over the whole step, or maxima
    (`_max`), plus `num_tokens` (tokens with a loss weight).

    Context-parallel ranks all have the loss of the whole micro-batch, of which each differentiates its own log-probs:
    so no sample is cut for the loss, and nothing counts twice."""
    model.train()

    def loss(micro_batch: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor, Any]:
        wants_entropy = algo.loss.entropy_coef > 0
        logprobs, entropy = _token_logprobs(model, micro_batch, hidden, temperature, vocab_size, wants_entropy)
        train = micro_batch.train
        tokens = Tokens(
            logprobs=logprobs,
            advantages=train["advantages"],
            loss_weights=train["loss_weights"],
            rollout_logprobs=train["rollout_logprobs"],
            lengths=micro_batch.counted,
            old_logprobs=train.get("old_logprobs"),
            ref_logprobs=train["ref_logprobs"] if algo.loss.kl_coef > 0 else None,
            entropy=entropy,
        )
        value, metrics = policy_loss(tokens, algo.loss)
        metrics["num_tokens"] = tokens.counts.sum()
        # Megatron may scale the loss in place; what is logged must not share its memory.
        return value, no_tokens(value), {name: metric.detach().double().clone() for name, metric in metrics.items()}

    return reduce_metrics(run(model, micro_batches, loss, forward_only=False))


def _token_logprobs(
    model: torch.nn.Module,
    micro_batch: MicroBatch,
    hidden: Tensor,
    temperature: float,
    vocab_size: int,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    config = get_model_config(model)
    rows = spread_hidden(hidden, config.sequence_parallel)[micro_batch.rows]
    weight = unwrap(model).output_weight()
    mine = token_logprobs(rows, weight, micro_batch.targets, temperature, vocab_size, entropy_grad=entropy_grad)
    if micro_batch.order is None:
        return mine
    logprobs, entropy = whole(torch.stack(mine, dim=1), micro_batch).unbind(dim=1)
    return logprobs, entropy if entropy_grad else entropy.detach()


def whole(values: Tensor, micro_batch: MicroBatch) -> Tensor:
    """values [n, ...] of this rank's rows -> [N, ...] of all that the micro-batch predicts, the same on every
    context-parallel rank; a gradient, which is the same on each of them too, goes to the rank's own rows."""
    if micro_batch.order is None:
        return values
    group = ps.get_context_parallel_group()
    gathered = gather_from_sequence_parallel_region(values, tensor_parallel_output_grad=False, group=group)
    return gathered[micro_batch.order]


def no_tokens(like: Tensor) -> Tensor:
    """The token count Megatron asks for; our loss weights are normalised already, so it is not used."""
    return torch.zeros((), dtype=torch.int, device=like.device)


def run(model: torch.nn.Module, micro_batches: list[MicroBatch], loss: Any, forward_only: bool) -> list[Any]:
    def forward_step(iterator: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Tensor, Any]:
        micro_batch = next(iterator)
        hidden = model(micro_batch.tokens, micro_batch.positions, None, packed_seq_params=micro_batch.packed)
        return hidden, partial(loss, micro_batch)

    batch, length = micro_batches[0].tokens.shape
    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter(micro_batches),
        model=[model],
        num_microbatches=len(micro_batches),
        seq_length=length,
        micro_batch_size=batch,
        forward_only=forward_only,
    )


def reduce_metrics(outputs: list[dict[str, Tensor]]) -> dict[str, float]:
    """Micro-batches' metrics (last stage; empty lists elsewhere) -> one value each, the same on every rank."""
    metrics: dict[str, float] = {}
    if ps.is_pipeline_last_stage():
        names = sorted(outputs[0])
        values = {name: torch.stack([output[name] for output in outputs]) for name in names}
        for op, chosen in (
            (dist.ReduceOp.SUM, [name for name in names if not name.endswith("_max")]),
            (dist.ReduceOp.MAX, [name for name in names if name.endswith("_max")]),
        ):
            if not chosen:
                continue
            parts = [values[name].sum() if op == dist.ReduceOp.SUM else values[name].max() for name in chosen]
            reduced = torch.stack(parts)
            # Without the context-parallel ranks: each has the metrics of whole micro-batches.
            dist.all_reduce(reduced, op=op, group=ps.get_data_parallel_group())
            metrics |= dict(zip(chosen, reduced.tolist(), strict=True))
    if ps.get_pipeline_model_parallel_world_size() > 1:
        box = [metrics]
        last = ps.get_pipeline_model_parallel_last_rank()
        dist.broadcast_object_list(box, src=last, group=ps.get_pipeline_model_parallel_group())
        metrics = box[0]
    return metrics
