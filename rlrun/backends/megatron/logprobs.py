"""Log-probs and entropy of tokens under logits that never exist as a whole.

The output projection, the softmax over a vocabulary split by tensor parallelism, and the gather of the sampled token
run on a few rows at a time; when a gradient is wanted they are recomputed in the backward pass.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state as ps
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROWS = 1024
"""Rows projected at a time: 0.6 GB of float32 logits for a vocabulary of 152 thousand."""


def spread_hidden(hidden: Tensor, sequence_parallel: bool) -> Tensor:
    """Hidden states [s, b, h] of the last stage, whole on every tensor-parallel rank, as [b * s, h] (row b * S + s);
    in the backward pass each rank's gradient is summed, because each rank projects onto its own slice of the
    vocabulary."""
    if sequence_parallel:
        hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
    rows = hidden.transpose(0, 1).reshape(-1, hidden.shape[-1])
    # Contiguous from here on: Megatron's all-reduce of a gradient that is a strided view returns it unreduced.
    return rows if sequence_parallel else copy_to_tensor_model_parallel_region(rows)


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    vocab_size: int,
    rows: int = ROWS,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden @ weight.T / temperature)[target] and the entropy of that softmax, float32 [N] each.

    hidden [N, h], N >= 1; weight [padded_vocab / tp, h], this rank's slice; targets [N] int64 in 0..vocab_size - 1.
    Columns from `vocab_size` on are padding and have no probability. The log-probs are differentiable, the entropy
    only with `entropy_grad`, which takes two more [rows, vocabulary] tensors. Collective over the tensor-parallel
    group.
    """
    chunks = []
    for start in range(0, len(hidden), rows):
        part = (
            hidden[start : start + rows],
            weight,
            targets[start : start + rows],
            temperature,
            vocab_size,
            entropy_grad,
        )
        if torch.is_grad_enabled() and len(hidden) > rows:
            chunks.append(checkpoint(_chunk, *part, use_reentrant=False, preserve_rng_state=False))
        else:
            chunks.append(_chunk(*part))
    logprobs, entropy = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return logprobs, entropy


def _chunk(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, vocab_size: int, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, weight).float() / temperature
    return vocab_parallel_logprobs(logits, targets, vocab_size, entropy_grad)


def vocab_parallel_logprobs(
    logits: Tensor, targets: Tensor, vocab_size: int, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """As `token_logprobs`, from this rank's float32 logits [N, padded_vocab / tp]."""
    group, width = ps.get_tensor_model_parallel_group(), logits.shape[1]
    first = group.rank() * width
    if first + width > vocab_size:
        columns = torch.arange(first, first + width, device=logits.device)
        logits = logits.masked_fill(columns >= vocab_size, float("-inf"))
    with torch.no_grad():
        # A rank may hold nothing but padding; its -inf loses the maximum below.
        maximum = logits.max(dim=1).values
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - maximum[:, None]
    exponentials = shifted.exp()

    mine = (targets >= first) & (targets < first + width)
    picked = shifted.gather(1, (targets - first).clamp(0, width - 1)[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        # H = log Z - sum p x with x = shifted logits, where a padded column (p = 0, x = -inf) has to add 0 and not NaN,
        # to the value as to the gradient.
        finite = shifted.masked_fill(shifted == float("-inf"), 0.0)
        weighted = (exponentials * finite).sum(dim=1)
    local = torch.stack([exponentials.sum(dim=1), torch.where(mine, picked, 0.0), weighted])
    # The sum over ranks passes the gradient through: every rank computes the same loss and keeps its own columns.
    total, target, mean = reduce_from_tensor_model_parallel_region(local)
    log_total = total.log()
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = log_total - mean / total
    return target - log_total, entropy
