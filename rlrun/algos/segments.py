"""Sums over the sequences of a packed micro-batch (torch): tokens end to end, `lengths` of them each."""

from __future__ import annotations

import torch
from torch import Tensor


def sequence_sum(values: Tensor, lengths: Tensor) -> Tensor:
    """values [N], lengths [S] int64 that sum to N -> [N]: on each token the sum over its sequence. Differentiable, and
    the same from run to run on every device."""
    if not values.numel():
        return values
    return _back(torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True), lengths, len(values))


def sequence_mean(values: Tensor, counts: Tensor, lengths: Tensor) -> Tensor:
    """The same for the mean over the tokens of the sequence where `counts` [N] is true; values are 0 elsewhere."""
    number = sequence_sum(counts.to(values.dtype), lengths)
    return sequence_sum(values, lengths) / number.clamp(min=1)


def sequence_any(flags: Tensor, lengths: Tensor) -> Tensor:
    """[N] bool: whether any token of the sequence has the flag."""
    return sequence_sum(flags.float(), lengths) > 0


def _back(per_sequence: Tensor, lengths: Tensor, total: int) -> Tensor:
    return per_sequence.repeat_interleave(lengths, output_size=total)
