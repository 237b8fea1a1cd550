"""Transformer layers in plain torch, so that neither TransformerEngine, Apex nor flash-attn is required.

Megatron's own layers and tensor parallelism are used as they are; its norm and its attention core are replaced, and
what a family has beyond them comes from `mixers` and `delta_net`. Stock `WrappedTorchNorm` refuses sequence
parallelism, and stock `DotProductAttention` refuses packed sequences and keeps the T x T scores.
"""

from __future__ import annotations

import importlib.util

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from rlrun.backends.megatron.attention import CausalAttention
from rlrun.backends.megatron.delta_net import delta_net_submodules
from rlrun.backends.megatron.mixers import FullNormAttention, LatentAttention, SandwichAttention, SandwichMLP
from rlrun.backends.megatron.norms import RMSNorm
from rlrun.plan.parameters import is_linear, is_sparse
from rlrun.plan.types import ModelSpec


def without_transformer_engine() -> None:
    """Two places of megatron-core 0.16.1 take TransformerEngine for granted: the router multiplies with a function that
    is never defined without it, and latent attention compares with a class that is None."""
    if importlib.util.find_spec("transformer_engine") is None:
        moe_utils.te_general_gemm = None
        multi_latent_attention.HAVE_TE = False


def layer_spec(spec: ModelSpec, layer: int, config: TransformerConfig, gdn_backend: str) -> ModuleSpec:
    """Megatron's local spec of layer number `layer` (over all stages, from 0), with our parts in it."""
    sparse = is_sparse(spec, layer)
    built = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if sparse else None,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=spec.mla is not None,
        normalization="RMSNorm",
    )
    parts = built.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    if is_linear(spec, layer):
        parts.self_attention = delta_net_submodules(config, gdn_backend)
    else:
        _attention(spec, parts.self_attention)
    if spec.sandwich_norms:
        parts.self_attention.module = SandwichAttention
        parts.mlp.module = SandwichMLP
    return built


def _attention(spec: ModelSpec, attention: ModuleSpec) -> None:
    parts = attention.submodules
    parts.core_attention = CausalAttention
    if spec.mla is not None:
        attention.module = LatentAttention
        parts.q_layernorm = parts.kv_layernorm = RMSNorm
    elif spec.qk_norm == "head":
        parts.q_layernorm = parts.k_layernorm = RMSNorm
    elif spec.qk_norm == "full":
        attention.module = FullNormAttention


def decoder_spec(config: TransformerConfig, spec: ModelSpec, gdn_backend: str) -> TransformerBlockSubmodules:
    """This pipeline stage's layers, and the final norm. `gdn_backend`: which kernels compute gated delta nets."""
    without_transformer_engine()
    first = get_transformer_layer_offset(config)
    layers = [layer_spec(spec, first + i, config, gdn_backend) for i in range(get_num_layers_to_build(config))]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm)
