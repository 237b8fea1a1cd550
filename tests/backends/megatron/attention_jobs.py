"""What the attention tests run on every rank; `megatron_jobs` offers it to the pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlrun.backends.base import Rendezvous
from rlrun.plan.types import RunPlan

WIDTH = 24


def latent(
    rendezvous: Rendezvous, plan: RunPlan, rows: dict[str, tuple[np.ndarray, list[int] | None, np.ndarray]]
) -> dict[str, Any]:
    """Megatron's latent attention, whose values are narrower than its keys, around our core. A row is the hidden states
    [s, b, h] of all ranks, the lengths of its samples (None when padded) and the gradient of the output.

    Returns for each row this rank's output, the gradient of its input, and its share of those of the weights."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    from rlrun.backends.megatron import cpu, device
    from rlrun.backends.megatron.layers import CausalAttention, RMSNorm
    from rlrun.backends.megatron.microbatch import _packed
    from rlrun.data import zigzag

    with cpu.shim():
        device.setup(plan)
        try:
            info, cp = device.join(plan, rendezvous), plan.train.cp
            config = MLATransformerConfig(
                num_layers=1,
                hidden_size=WIDTH,
                num_attention_heads=2,
                q_lora_rank=16,
                kv_lora_rank=16,
                qk_head_dim=8,
                qk_pos_emb_head_dim=4,
                v_head_dim=6,
                rope_type="rope",
                add_bias_linear=False,
                normalization="RMSNorm",
                apply_rope_fusion=False,
                attention_dropout=0.0,
                context_parallel_size=cp,
                gradient_accumulation_fusion=False,
                init_method_std=0.3,
            )
            layer = get_gpt_layer_local_spec(multi_latent_attention=True, qk_layernorm=True, normalization="RMSNorm")
            multi_latent_attention.HAVE_TE = False  # without TransformerEngine it is True, and a class is missing
            spec = layer.submodules.self_attention
            spec.submodules.core_attention = CausalAttention
            spec.submodules.q_layernorm = spec.submodules.kv_layernorm = RMSNorm
            attention = build_module(spec, config=config, layer_number=1)
            found = {}
            for name, (hidden, lengths, upstream) in rows.items():
                mine = torch.from_numpy(zigzag.mine(lengths or [len(hidden)], cp, info.cp))
                leaf = torch.from_numpy(hidden)[mine].requires_grad_()
                packed = _packed(lengths) if lengths else None
                output, _ = attention(leaf, None, packed_seq_params=packed)
                attention.zero_grad()
                output.backward(torch.from_numpy(upstream)[mine])
                gradients = {key: p.grad.numpy().copy() for key, p in attention.named_parameters()}
                found[name] = {"output": output.detach().numpy(), "input": leaf.grad.numpy(), "weights": gradients}
            return found
        finally:
            device.leave()
