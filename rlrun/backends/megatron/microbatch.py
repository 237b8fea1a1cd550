"""TokenBatch -> what one forward pass of the model takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from rlrun.data import zigzag
from rlrun.data.types import TokenBatch, TrainBatch, ValueBatch


@dataclass(frozen=True)
class Cut:
    """How the ranks of one replica divide a sequence: context-parallel rank `rank` of `cp` has its chunks of every
    sample (`rlrun.data.zigzag`), and `tp` ranks (under sequence parallelism, else 1) share those."""

    tp: int = 1
    cp: int = 1
    rank: int = 0


@dataclass
class MicroBatch:
    """Input of the model, and which of its output rows predict which tokens.

    tokens, positions [b, s] int64: what this rank has of them; `packed` describes the samples in the packed row (b = 1)
    of all ranks, None when padded.

    The micro-batch predicts N >= 1 tokens: an empty one predicts one dummy, whose weight is 0. `counted` [S] int64: how
    many of them belong to each sample, in order; they sum to N. `train` holds the per-token arrays of the loss, [N]
    float32 each (empty when only log-probs are wanted).

    rows, targets [n] int64: row `rows[j]` of this rank's hidden states [b * s, h] predicts token `targets[j]`. Without
    context parallelism n = N. With it every rank has some of the rows, n is the most that any has, and the others
    repeat row 0: `order` [N] int64 says where each prediction is among the [cp * n] of all ranks.
    """

    samples: list[int]
    lengths: list[int]
    tokens: Tensor
    positions: Tensor
    packed: PackedSeqParams | None
    rows: Tensor
    targets: Tensor
    order: Tensor | None
    counted: Tensor
    train: dict[str, Tensor]


PER_TOKEN = ("loss_weights", "advantages", "old_logprobs", "ref_logprobs", "rollout_logprobs")
OF_VALUES = ("loss_weights", "old_values", "returns")


def _per_token(batch: TokenBatch) -> tuple[str, ...]:
    return OF_VALUES if isinstance(batch, ValueBatch) else PER_TOKEN


def make_microbatches(
    batch: TokenBatch, batching: str, cut: Cut, device: torch.device, train: bool
) -> list[MicroBatch]:
    """One MicroBatch for each list in `batch.micro_batches`, for one rank of `cut`, for which lengths are rounded up.
    With `train` (a TrainBatch or ValueBatch), only the tokens with a loss weight are predicted; otherwise all but each
    sample's first."""
    assert batch.micro_batches, "a batch needs at least one micro-batch, which may be empty"
    placed = sorted(index for samples in batch.micro_batches for index in samples)
    assert placed == list(range(len(batch.tokens))), "every sample belongs in exactly one micro-batch"
    return [_make(batch, samples, batching, cut, device, train) for samples in batch.micro_batches]


def _make(
    batch: TokenBatch, samples: list[int], batching: str, cut: Cut, device: torch.device, train: bool
) -> MicroBatch:
    sequences = [batch.tokens[i] for i in samples] or [np.zeros(1, dtype=np.int64)]
    lengths = [len(tokens) for tokens in sequences]
    padded = _packed_lengths(lengths, cut) if batching == "packed" else _padded_lengths(lengths, cut)
    starts = np.cumsum([0, *padded[:-1]])
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
    rows, targets, order = share(rows, targets, padded, cut)
    height = 1 if batching == "packed" else len(padded)
    mine = zigzag.mine(padded, cut.cp, cut.rank)
    filled = [np.pad(tokens, (0, n - len(tokens))) for tokens, n in zip(sequences, padded, strict=True)]

    def move(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return MicroBatch(
        samples=samples,
        lengths=lengths if samples else [],
        tokens=move(np.concatenate(filled).astype(np.int64)[mine].reshape(height, -1)),
        positions=move(np.concatenate([np.arange(n) for n in padded])[mine].reshape(height, -1)),
        packed=_packed(padded) if batching == "packed" else None,
        rows=move(rows),
        targets=move(targets),
        order=None if order is None else move(order),
        counted=move(counted.astype(np.int64)),
        train={name: move(array) for name, array in values.items()},
    )


def share(
    rows: np.ndarray, targets: np.ndarray, padded: list[int], cut: Cut
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Of `rows` [N], numbers of rows of the whole sequence, and their `targets`: (this rank's, by numbers of its own
    rows; their targets; order), as MicroBatch has them."""
    if cut.cp == 1:
        return rows, targets, None
    owner, own_row = np.divmod(zigzag.place(padded, cut.cp)[rows], sum(padded) // cut.cp)
    width = int(np.bincount(owner).max())
    order = np.empty(len(rows), np.int64)
    for rank in range(cut.cp):
        predicts = np.flatnonzero(owner == rank)
        order[predicts] = rank * width + np.arange(len(predicts))
    predicts = np.flatnonzero(owner == cut.rank)
    missing = (0, width - len(predicts))
    return np.pad(own_row[predicts], missing), np.pad(targets[predicts], missing), order


def _packed_lengths(lengths: list[int], cut: Cut) -> list[int]:
    """Samples end to end; each has equal chunks, and the last one is longer where tensor-parallel ranks need it: on the
    right, where it is never looked at."""
    padded = [zigzag.filled(n, cut.cp) for n in lengths]
    padded[-1] += _rounded(sum(padded), _multiple(cut)) - sum(padded)
    return padded


def _padded_lengths(lengths: list[int], cut: Cut) -> list[int]:
    return [_rounded(max(lengths), _multiple(cut))] * len(lengths)


def _multiple(cut: Cut) -> int:
    return math.lcm(zigzag.multiple(cut.cp), cut.cp * cut.tp)


def _rounded(n: int, multiple: int) -> int:
    return n + -n % multiple


def _packed(padded: list[int]) -> PackedSeqParams:
    # On the CPU on purpose: every layer reads them as Python numbers, which would stall a GPU.
    cu_seqlens = torch.from_numpy(np.cumsum([0, *padded], dtype=np.int32))
    longest = max(padded)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
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
