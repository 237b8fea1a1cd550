"""Attention and MLP variants that Megatron-core does not have, as small subclasses of its own."""

from __future__ import annotations

from typing import Any

from megatron.core import parallel_state as ps
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.mlp import MLP
from torch import Tensor

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


class SandwichAttention(SelfAttention):
    """Self-attention with a norm on its output, before the residual is added."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        self.post_layernorm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        output, bias = super().forward(*args, **kwargs)
        assert bias is None
        return self.post_layernorm(output), None


class SandwichMLP(MLP):
    """An MLP with a norm on its output, before the residual is added."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        self.post_layernorm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        output, bias = super().forward(*args, **kwargs)
        assert bias is None
        return self.post_layernorm(output), None
