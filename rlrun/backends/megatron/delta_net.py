"""The gated delta net of Qwen3.5 as Megatron's mixer of a layer: stock parameters and their sharding, own computation.

Stock `GatedDeltaNet` of megatron-core 0.16.1 refuses packed sequences, keeps A_log and dt_bias in the model's dtype,
makes the output norm zero-centred when the others are, needs FLA to be built at all, and leaves the gradient of the
output norm unsummed over tensor-parallel ranks without sequence parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.ssm import gated_delta_net as stock
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlrun.backends.megatron.delta_rule import choose_kernel, gated_delta_rule
from rlrun.backends.megatron.short_conv import causal_conv
from rlrun.plan.types import LinearAttentionSpec


def delta_net_fields(linear: LinearAttentionSpec) -> dict[str, Any]:
    """Fields of TransformerConfig. `experimental_attention_variant` stays unset: it would choose Megatron's own layer
    specs, which need TransformerEngine. The frequency makes checkpoints name every layer by its number."""
    return {
        "linear_attention_freq": linear.full_interval,
        "linear_num_key_heads": linear.num_key_heads,
        "linear_num_value_heads": linear.num_value_heads,
        "linear_key_head_dim": linear.key_dim,
        "linear_value_head_dim": linear.value_dim,
        "linear_conv_kernel_dim": linear.conv_kernel,
    }


def delta_net_submodules(config: TransformerConfig, kernel: str = "auto") -> ModuleSpec:
    """What stands in place of `self_attention` in the spec of a layer. `kernel` is `train.gdn_backend` of the plan;
    RunFailed when its package is not installed (here, because Megatron makes another error of one raised while it
    builds a module)."""
    assert config.context_parallel_size == 1, "a gated delta net needs whole sequences"
    assert config.linear_num_value_heads % config.linear_num_key_heads == 0
    assert config.linear_num_key_heads % config.tensor_model_parallel_size == 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return ModuleSpec(
        module=GatedDeltaNet,
        params={"kernel": choose_kernel(kernel, device, config.params_dtype)},
        submodules=stock.GatedDeltaNetSubmodules(
            in_proj=ColumnParallelLinear, out_norm=OutputNorm, out_proj=RowParallelLinear
        ),
    )


class OutputNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight * silu(gate), in float32, back in x's dtype. The weight is 1 at first, also
    in models whose other norms keep weight - 1. All heads share it, so on every tensor-parallel rank its gradient has
    only that rank's heads; it is summed here, because Megatron would do that under sequence parallelism only."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float):
        super().__init__()
        self.eps = eps
        weight = torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor, gate: Tensor, group: torch.distributed.ProcessGroup, recompute: bool) -> Tensor:
        """x, gate [..., hidden_size]. `recompute` keeps them alone for the backward pass, and no float32 copies."""
        weight = copy_to_tensor_model_parallel_region(self.weight, group)
        if recompute and torch.is_grad_enabled():
            return checkpoint(_gated_norm, x, gate, weight, self.eps, use_reentrant=False, preserve_rng_state=False)
        return _gated_norm(x, gate, weight, self.eps)


def _gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    dtype = _wide(x.dtype)
    return (F.rms_norm(x.to(dtype), weight.shape, weight.to(dtype), eps) * F.silu(gate.to(dtype))).to(x.dtype)


class GatedDeltaNet(stock.GatedDeltaNet):
    """in_proj [q; k; v; z; b; a] (each section shared out over tensor-parallel ranks by heads), a convolution over
    q, k and v, the gated delta rule, a gated norm, out_proj. A_log and dt_bias are float32 in any model: bfloat16
    would round decay rates to 1 in 256."""

    def __init__(self, config: TransformerConfig, *args: Any, kernel: str = "torch", **kwargs: Any):
        assert config.context_parallel_size == 1, "a gated delta net needs whole sequences"
        with _built_without_fla():
            super().__init__(config, *args, **kwargs)
        assert config.activation_func is F.silu
        for name in ("A_log", "dt_bias"):
            wide = nn.Parameter(getattr(self, name).detach().to(_wide(config.params_dtype)))
            wide.tensor_model_parallel = True
            setattr(self, name, wide)
        self.kernel = kernel  # what `choose_kernel` returned

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, packed_seq_params: Any = None, **unused: Any
    ) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (s / tp under sequence parallelism) -> the same, and no bias. Padding is on the right, where no
        token looks. Packed (thd): b is 1 and the samples lie between the cumulative lengths. Positions and masks,
        which Megatron hands to every mixer, have no meaning here."""
        assert unused.get("inference_context") is None
        projected = self.in_proj(hidden_states)[0].transpose(0, 1)  # [b, s, width / tp]
        bounds = None if packed_seq_params is None else tuple(packed_seq_params.cu_seqlens_q.tolist())
        assert bounds is None or bounds[-1] == projected.shape[1], "cu_seqlens do not cover the packed row"
        keys, values, heads = (n // self.tp_size for n in (self.qk_dim, self.v_dim, self.num_value_heads))
        qkv, gate, beta, alpha = projected.split([2 * keys + values, values, heads, heads], dim=-1)

        qkv = causal_conv(qkv, self.conv1d.weight, bounds, fused=self.kernel != "torch")
        q, k, v = qkv.split([keys, keys, values], dim=-1)
        q, k = (x.unflatten(-1, (-1, self.key_head_dim)) for x in (q, k))
        v, gate = (x.unflatten(-1, (-1, self.value_head_dim)) for x in (v, gate))
        dtype = self.A_log.dtype
        g = -self.A_log.exp() * F.softplus(alpha.to(dtype) + self.dt_bias)

        # Float32 inside is computed twice and not kept; where whole layers are recomputed, that would gain nothing.
        recompute = self.config.recompute_granularity != "full"
        out = gated_delta_rule(q, k, v, g, beta.to(dtype).sigmoid(), bounds, self.kernel, recompute)
        out = self.out_norm(out, gate, self.pg_collection.tp, recompute)
        return self.out_proj(out.flatten(2).transpose(0, 1).contiguous())


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def _built_without_fla() -> Iterator[None]:
    """Stock construction refuses without FLA, of which only the stock forward has a use."""
    before, stock.HAVE_FLA = stock.HAVE_FLA, True
    try:
        yield
    finally:
        stock.HAVE_FLA = before
