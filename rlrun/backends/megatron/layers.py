"""Transformer layer parts in plain torch, so that neither TransformerEngine, Apex nor flash-attn is required.

Megatron's own layers and tensor parallelism are used as they are; only its norm and its attention core are replaced.
Stock `WrappedTorchNorm` refuses sequence parallelism, and stock `DotProductAttention` refuses packed sequences and
keeps the T x T scores.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn


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


class CausalAttention(MegatronModule):
    """softmax(q k^T / sqrt(d)) v, causal, by torch's scaled_dot_product_attention (flash kernels on CUDA).

    Packed sequences run one after the other, so that no T x T mask exists and no token sees another sample.
    """

    def __init__(self, config: TransformerConfig, layer_number: int, attn_mask_type, attention_type, **_):
        super().__init__(config=config)
        assert config.context_parallel_size == 1, "context parallelism is not implemented"
        assert config.attention_dropout == 0.0

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type=None,
        attention_bias: Tensor | None = None,
        packed_seq_params=None,
    ) -> Tensor:
        """Padded: query [s, b, heads, d], key and value [s, b, groups, d] -> [s, b, heads * d]; padding is on the
        right, where causality already hides it. Packed (thd): [t, heads, d] -> [t, heads * d]."""
        assert attention_mask is None
        assert attention_bias is None
        if packed_seq_params is None:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            return _sdpa(q, k, v).permute(2, 0, 1, 3).flatten(2)
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        lengths = [end - start for start, end in itertools.pairwise(bounds)]
        assert sum(lengths) == query.shape[0], "cu_seqlens do not cover the packed row"
        pieces = zip(*(x.transpose(0, 1).split(lengths, dim=1) for x in (query, key, value)), strict=True)
        outputs = [_sdpa(q[None], k[None], v[None])[0] for q, k, v in pieces]
        return torch.cat(outputs, dim=1).transpose(0, 1).flatten(1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[b, heads, s, d] each; k and v may have fewer heads (grouped queries)."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def decoder_spec(config: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron's local layer spec with the two parts above in it, for this pipeline stage's layers."""
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
