"""Transformer layer parts in plain torch, so that neither TransformerEngine, Apex nor flash-attn is required.

Megatron's own layers and tensor parallelism are used as they are; only its norm and its attention core are replaced.
Stock `WrappedTorchNorm` refuses sequence parallelism, and stock `DotProductAttention` refuses packed sequences and
keeps the T x T scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rlrun.backends.megatron.attention import CausalAttention


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in float32, back in x's dtype."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_):
        super().__init__()
        self.eps = eps
        weight = torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight = nn.Parameter(weight)
        # Each tensor-parallel rank sees only its slice of the sequence then; Megatron sums the gradients.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def decoder_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron's local layer spec with these two parts in it, for this pipeline stage's layers."""
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
    )
    layer.submodules.input_layernorm = RMSNorm
    layer.submodules.pre_mlp_layernorm = RMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = CausalAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=RMSNorm)
