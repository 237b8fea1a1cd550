"""The attention core in plain torch: causal, packed or padded, without a T x T matrix."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


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
