"""TokenBatch -> what one forward pass of the model takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from rlrun.data.types import TokenBatch, TrainBatch, ValueBatch


@dataclass
class MicroBatch:
    """Input of the model, and which of its output rows predict which tokens.

    tokens, positions [b, s] int64; `packed` describes the samples in a packed row (b = 1), None when padded.
    rows, targets [N] int64: row `rows[j]` of the hidden states [b * s, h] predicts token `targets[j]`. N >= 1: an
    empty micro-batch predicts one dummy token, whose weight is 0. `counted` [S] int64: how many of the rows belong to
    each sample, in order; they sum to N. `train` holds the per-token arrays of the loss, [N]
    float32 each (empty when only log-probs are wanted).
    """

    samples: list[int]
    lengths: list[int]
    tokens: Tensor
    positions: Tensor
    packed: PackedSeqParams | None
    rows: Tensor
    targets: Tensor
    counted: Tensor
    train: dict[str, Tensor]


PER_TOKEN = ("loss_weights", "advantages", "old_logprobs", "ref_logprobs", "rollout_logprobs")
OF_VALUES = ("loss_weights", "old_values", "returns")


def _per_token(batch: TokenBatch) -> tuple[str, ...]:
    return OF_VALUES if isinstance(batch, ValueBatch) else PER_TOKEN


def make_microbatches(
    batch: TokenBatch, batching: str, multiple: int, device: torch.device, train: bool
) -> list[MicroBatch]:
    """One MicroBatch for each list in `batch.micro_batches`. Lengths are rounded up to a multiple of `multiple` (the
    tensor-parallel size under sequence parallelism). With `train` (a TrainBatch or ValueBatch), only the tokens with a
    loss weight are predicted; otherwise all but each sample's first."""
    assert batch.micro_batches, "a batch needs at least one micro-batch, which may be empty"
    placed = sorted(index for samples in batch.micro_batches for index in samples)
    assert placed == list(range(len(batch.tokens))), "every sample belongs in exactly one micro-batch"
    return [_make(batch, samples, batching, multiple, device, train) for samples in batch.micro_batches]


def _make(
    batch: TokenBatch, samples: list[int], batching: str, multiple: int, device: torch.device, train: bool
) -> MicroBatch:
    sequences = [batch.tokens[i] for i in samples] or [np.zeros(1, dtype=np.int64)]
    lengths = [len(tokens) for tokens in sequences]
    if batching == "packed":
        tokens, positions, starts, packed = _pack(sequences, multiple)
    else:
        tokens, positions, starts = _pad(sequences, multiple)
        packed = None
    # Token t (t >= 1) is predicted by the row of token t - 1.
    rows = np.concatenate([start + np.arange(n - 1) for start, n in zip(starts, lengths, strict=True)])
    counted = np.array([n - 1 for n in lengths], np.int64)
    targets = np.concatenate([tokens[1:] for tokens in sequences])
    values = _train_values(batch, samples, len(rows)) if train else {}
    if values:
        keep = values["loss_weights"] != 0
        counted = np.bincount(np.repeat(np.arange(len(counted)), counted)[keep], minlength=len(counted))
        rows, targets = rows[keep], targets[keep]
        values = {name: array[keep] for name, array in values.items()}
    if not len(rows):
        rows, targets = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        counted = np.ones(1, dtype=np.int64)
        values = {name: np.zeros(1, dtype=np.float32) for name in _per_token(batch)} if train else {}

    def move(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return MicroBatch(
        samples=samples,
        lengths=lengths if samples else [],
        tokens=move(tokens),
        positions=move(positions),
        packed=packed,
        rows=move(rows),
        targets=move(targets),
        counted=move(counted.astype(np.int64)),
        train={name: move(array) for name, array in values.items()},
    )


def _train_values(batch: TokenBatch, samples: list[int], num_predicted: int) -> dict[str, np.ndarray]:
    """The loss's arrays for tokens 1..T-1 of the samples, end to end: what the first token has cannot be trained on.
    Empty without samples."""
    assert isinstance(batch, TrainBatch | ValueBatch)
    if not samples:
        return {}
    values = {}
    for name in _per_token(batch):
        arrays = getattr(batch, name)
        if arrays:
            values[name] = np.concatenate([np.asarray(arrays[i], dtype=np.float32)[1:] for i in samples])
            assert len(values[name]) == num_predicted, f"{name} has not the length of its tokens"
    return values


def _pack(sequences: list[np.ndarray], multiple: int) -> tuple[np.ndarray, np.ndarray, list[int], PackedSeqParams]:
    """Samples end to end in one row; padding lengthens the last one on the right, where it is never looked at."""
    bounds = np.cumsum([0, *(len(tokens) for tokens in sequences)])
    starts = bounds[:-1].tolist()
    padding = -int(bounds[-1]) % multiple
    bounds[-1] += padding
    tokens = np.concatenate([*sequences, np.zeros(padding, dtype=np.int64)]).astype(np.int64)
    lengths = np.diff(bounds)
    positions = np.concatenate([np.arange(n) for n in lengths])
    # On the CPU on purpose: every layer reads them as Python numbers, which would stall a GPU.
    cu_seqlens = torch.from_numpy(bounds.astype(np.int32))
    longest = int(lengths.max())
    packed = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
    return tokens[None], positions[None], starts, packed


def _pad(sequences: list[np.ndarray], multiple: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    longest = max(len(tokens) for tokens in sequences)
    width = longest + -longest % multiple
    tokens = np.zeros((len(sequences), width), dtype=np.int64)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = sequence
    positions = np.broadcast_to(np.arange(width), tokens.shape).copy()
    return tokens, positions, [i * width for i in range(len(sequences))]
