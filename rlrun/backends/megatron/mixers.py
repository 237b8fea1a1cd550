"""Attention and MLP variants that Megatron-core does not have, as small subclasses of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state as ps
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from torch import Tensor, nn

from rlrun.backends.megatron.norms import FullWidthRMSNorm, RMSNorm


class FullNormAttention(SelfAttention):
    """Self-attention whose query and key norms have one variance over all heads of all tensor-parallel ranks."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        ranks = ps.get_tensor_model_parallel_world_size()
        assert config.num_query_groups % ranks == 0, "ranks that share key heads cannot norm them"
        width, eps = self.hidden_size_per_attention_head, config.layernorm_epsilon
        self.q_norm = FullWidthRMSNorm(config, width * config.num_attention_heads, eps)
        self.k_norm = FullWidthRMSNorm(config, width * config.num_query_groups, eps)

    def get_query_key_value_tensors(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        query, key, *rest = super().get_query_key_value_tensors(*args, **kwargs)
        query = self.q_norm(query.flatten(-2)).view_as(query)
        key = self.k_norm(key.flatten(-2)).view_as(key)
        return (query, key, *rest)


class NormedOutput(nn.Module):
    """Before a module of Megatron in a list of bases: a norm on its output, before the residual is added."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        self.post_layernorm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        output, bias = super().forward(*args, **kwargs)
        assert bias is None
        return self.post_layernorm(output), None


class SandwichAttention(NormedOutput, SelfAttention):
    """Self-attention between two norms."""


class SandwichMLP(NormedOutput, MLP):
    """An MLP between two norms."""


class LatentAttention(MLASelfAttention):
    """Multi-head latent attention whose down projections are whole on every tensor-parallel rank.

    Without TransformerEngine Megatron cuts them, and gathers the rotated slice of the keys, which all heads share, by
    an operation that keeps only one rank's share of its gradient. Whole projections see this rank's slice of the
    sequence instead, and the slice of the keys is gathered along the sequence, where gradients are summed.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        ranks = ps.get_tensor_model_parallel_world_size()
        assert ranks == 1 or config.sequence_parallel, "latent attention on several ranks needs sequence parallelism"
        self.linear_q_down_proj = WholeLinear(config, config.hidden_size, config.q_lora_rank)
        latent = config.kv_lora_rank + config.qk_pos_emb_head_dim
        self.linear_kv_down_proj = WholeLinear(config, config.hidden_size, latent)


class WholeLinear(nn.Module):
    """x @ weight.T without a bias, the same weight on every tensor-parallel rank."""

    def __init__(self, config: Any, in_features: int, out_features: int):
        super().__init__()
        device = torch.cuda.current_device()
        weight = torch.empty(out_features, in_features, dtype=config.params_dtype, device=device)
        config.init_method(weight)
        self.weight = nn.Parameter(weight)
        # Each rank sees its slice of the sequence; Megatron sums the gradients.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.linear(x, self.weight), None
