"""The short causal convolution in front of a gated delta net: each channel on its own, SiLU behind it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv(x: Tensor, weight: Tensor, bounds: Sequence[int] | None = None, fused: bool = False) -> Tensor:
    """silu(y) with y_t = sum_j weight[:, 0, K - 1 - j] x_{t - j}, j < K, where x is 0 before a sample's first token.

    x [b, s, channels], weight [channels, 1, K] -> [b, s, channels]. With `bounds` (0, ..., s) the one row (b = 1) holds
    samples end to end; without, each row is a sample. `fused` takes the kernel of the package causal-conv1d where it is
    installed and can compute this: on CUDA, with K from 2 to 4 and a multiple of 8 channels.
    """
    channels, _, kernel = weight.shape
    if fused and x.is_cuda and 2 <= kernel <= 4 and channels % 8 == 0 and (function := _fused()) is not None:
        return _by_kernel(function, x, weight, bounds)
    if bounds is None:
        padded = F.pad(x.transpose(1, 2), (kernel - 1, 0))
        return F.silu(_depthwise(padded, weight)).transpose(1, 2)
    assert len(x) == 1, "packed samples are one row"
    into, back = spread(tuple(bounds), kernel - 1, x.device)
    row = torch.cat([x[0], x.new_zeros(1, channels)]).index_select(0, into)
    out = _depthwise(row.T.unsqueeze(0), weight)
    return F.silu(out[0].T.index_select(0, back)).unsqueeze(0)


def _depthwise(x: Tensor, weight: Tensor) -> Tensor:
    """[b, channels, s] -> [b, channels, s - K + 1]. With channels innermost, CUDA might take a kernel of cuDNN, which
    rounds float32 to TF32."""
    return F.conv1d(x.contiguous(), weight, groups=len(weight))


@functools.lru_cache(maxsize=16)
def spread(bounds: tuple[int, ...], gap: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A row of t tokens with `gap` empty places in front of each of its samples. Returns the token at each place, t at
    empty ones, [t + samples * gap]; and of each token the index [t] of its output, which has `gap` places less."""
    total = bounds[-1]
    starts = torch.tensor(bounds[:-1])
    samples = torch.bucketize(torch.arange(total), torch.tensor(bounds[1:]), right=True)
    back = torch.arange(total) + samples * gap
    into = torch.full((total + len(starts) * gap,), total)
    into[back + gap] = torch.arange(total)
    return into.to(device), back.to(device)


@functools.cache
def _fused() -> Any:
    """https://github.com/Dao-AILab/causal-conv1d; None where it is not installed."""
    if importlib.util.find_spec("causal_conv1d") is None:
        return None
    from causal_conv1d import causal_conv1d_fn

    return causal_conv1d_fn


def _by_kernel(function: Any, x: Tensor, weight: Tensor, bounds: Sequence[int] | None) -> Tensor:
    """Its layout is [b, channels, s]; telling samples apart (`seq_idx`) needs channels to be the innermost."""
    index = None
    if bounds is not None:
        lengths = torch.tensor(bounds).diff()
        index = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(lengths).unsqueeze(0).to(x.device)
    columns = x.contiguous().transpose(1, 2)
    return function(columns, weight.squeeze(1), seq_idx=index, activation="silu").transpose(1, 2)
