"""RMSNorms in plain torch, which take what Megatron's own does not: sequence parallelism, zero-centred weights, and one
variance over heads that tensor parallelism spreads over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state as ps
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in float32, back in x's dtype; with `layernorm_zero_centered_gamma` in the
    config, times (1 + weight)."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any):
        super().__init__()
        self.eps = eps
        self.zero_centered = config.layernorm_zero_centered_gamma
        start = torch.zeros if self.zero_centered else torch.ones
        weight = start(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight = nn.Parameter(weight)
        # Each tensor-parallel rank sees only its slice of the sequence then; Megatron sums the gradients.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        weight = 1 + self.weight.float() if self.zero_centered else self.weight.float()
        return F.rms_norm(x.float(), self.weight.shape, weight, self.eps).to(x.dtype)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """The same on every tensor-parallel rank. Megatron's MLP asks each of its parts."""
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {}, sharded_offsets)


class FullWidthRMSNorm(nn.Module):
    """The same over `hidden_size` columns, of which this tensor-parallel rank has a slice, and its weight's.

    Only the sums of squares travel. The weight's gradient is whole on its rank, so it is neither summed nor averaged
    over tensor-parallel ranks, with or without sequence parallelism.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float):
        super().__init__()
        self.eps, self.hidden_size = eps, hidden_size
        group = ps.get_tensor_model_parallel_group()
        own = hidden_size // group.size()
        self.weight = nn.Parameter(torch.ones(own, dtype=config.params_dtype, device=torch.cuda.current_device()))
        # For Megatron's gradient norm: a slice of its own on each rank, not a copy.
        self.weight.tensor_model_parallel = True
        self.weight.partition_dim = 0
        self.weight.partition_stride = 1

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size / tp] -> the same."""
        wide = x.float()
        mean = _SumOverRanks.apply(wide.square().sum(-1, keepdim=True)) / self.hidden_size
        return (wide * torch.rsqrt(mean + self.eps) * self.weight.float()).to(x.dtype)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {"weight": 0}, sharded_offsets)


class _SumOverRanks(torch.autograd.Function):
    """The sum over tensor-parallel ranks. Every rank uses it for columns of its own, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=ps.get_tensor_model_parallel_group())
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ps.get_tensor_model_parallel_group())
        return total
