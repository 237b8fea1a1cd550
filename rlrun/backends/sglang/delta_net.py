"""Gated delta nets (Qwen3.5) on a CPU without SGLang's kernels, which are Triton or need AMX.

SGLang's CPU paths call functions of the package `sgl_kernel`, which a GPU-less environment lacks. `install` provides
those that Qwen3.5 needs, in torch: every function here has the signature and the meaning of SGLang's. They are written
for being right: the recurrence runs token by token, all sequences of a batch side by side, in float32.

One step, with state S [V, K], decay g <= 0 and rate beta (Yang, Kautz, Hatamizadeh 2024):

    S <- exp(g) S;  S <- S + beta (v - S k) k^T;  o = S q / sqrt(K),  q and k of length 1
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NORM_EPS = 1e-6
"""Added to the squared length of queries and keys."""


def install() -> None:
    """Makes the functions importable as SGLang looks for them. Call before anything imports sglang, in the launching
    process and in every child. Does nothing where the package is installed."""
    import torch

    if importlib.util.find_spec("sgl_kernel") is not None:
        return
    for operator in OPERATORS:
        setattr(torch.ops.sgl_kernel, operator.__name__, operator)
    package, module = types.ModuleType("sgl_kernel"), types.ModuleType("sgl_kernel.mamba")
    package.__path__ = []
    for made in (package, module):
        made.__spec__ = importlib.machinery.ModuleSpec(made.__name__, None, is_package=made is package)
        sys.modules[made.__name__] = made
    for function in FUNCTIONS:
        setattr(module, function.__name__, function)


def register_hooks() -> None:
    """Replaces the gated norm behind the recurrence, a Triton kernel, through SGLang's hook registry."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.layers.attention.fla.layernorm_gated.layernorm_fn"
    HookRegistry.register(target, layernorm_fn, HookType.REPLACE)


def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor, inplace: bool = True) -> Tensor:
    """x [n, d] * sigmoid(gate), whose trailing dimensions make d."""
    out = x * gate.reshape(x.shape).float().sigmoid().to(x.dtype)
    return x.copy_(out) if inplace else out


def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Norms of each head with weight 1 + w, as [n * heads, head_dim]."""
    return tuple(_rms_norm(x.reshape(-1, head_dim), 1.0 + w.float(), eps) for x, w in ((q, q_weight), (k, k_weight)))  # type: ignore[return-value]


def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int, num_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for queries that come with gates: q_gate [n, heads * 2 * head_dim] has both for each head."""
    q, gate = q_gate.reshape(q_gate.shape[0], num_heads, 2 * head_dim).chunk(2, dim=-1)
    q, k = fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, head_dim)
    return q, k, gate.contiguous()


def fused_gdn_gating_cpu(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Decay g (a logarithm) and rate beta of every token and value head: [1, n, heads], float32.

    By way of float64: the last bit of torch's float32 functions depends on a number's place in its tensor, and with it
    on the batch.
    """
    import torch.nn.functional as F

    g = -A_log.double().exp() * F.softplus(a.double() + dt_bias.double())
    return g.float().unsqueeze(0), b.double().sigmoid().float().unsqueeze(0)


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str | None,
    conv_states: Tensor,
    has_initial_state: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    **_: Any,
) -> Tensor:
    """Depthwise convolution over each sequence. x [d, n] holds all sequences, weight [d, w], conv_states
    [slots, d, w - 1] the last inputs of each; they are read where `has_initial_state`, and written. [d, n]."""
    import torch
    import torch.nn.functional as F

    width = weight.shape[1]
    out = torch.empty_like(x)
    bounds = query_start_loc.tolist()
    for i, (start, end) in enumerate(itertools.pairwise(bounds)):
        slot = int(cache_indices[i])
        before = conv_states[slot] if has_initial_state[i] else torch.zeros_like(conv_states[slot])
        whole = torch.cat([before.to(x.dtype), x[:, start:end]], dim=1)
        out[:, start:end] = F.conv1d(whole.unsqueeze(0), weight.unsqueeze(1), bias, groups=weight.shape[0])[0]
        conv_states[slot] = whole[:, whole.shape[1] - (width - 1) :]
    return _activate(out, activation)


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    conv_state_indices: Tensor,
    **_: Any,
) -> Tensor:
    """The same for one more token of each sequence: x [n, d] -> [n, d]."""
    import torch

    slots = conv_state_indices.long()
    whole = torch.cat([conv_state[slots].to(x.dtype), x.unsqueeze(-1)], dim=-1)
    conv_state[slots] = whole[..., 1:].to(conv_state.dtype)
    out = (whole * weight).sum(dim=-1)
    return _activate(out if bias is None else out + bias, activation)


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    **_: Any,
) -> tuple[Tensor, None, None]:
    """The recurrence over whole sequences. q, k [1, n, key heads, K], v [1, n, heads, V], g and beta [1, n, heads];
    initial_state [slots, heads, V, K] is read and written. Returns outputs [1, n, heads, V], and neither the last nor
    the states in between, which only SGLang's prefix cache with extra buffers asks for."""
    import torch

    q, k = _heads(q[0], v.shape[2]), _heads(k[0], v.shape[2])
    starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
    slots = initial_state_indices.long()
    state = initial_state[slots].float()
    out = torch.empty(v[0].shape, dtype=torch.float32)
    for step in range(int(lengths.max())):
        running = (lengths > step).nonzero().squeeze(1)
        at = starts[running] + step
        state[running], out[at] = _step(state[running], q[at], k[at], v[0, at], g[0, at], beta[0, at])
    initial_state[slots] = state.to(initial_state.dtype)
    return out.to(v.dtype).unsqueeze(0), None, None


def fused_sigmoid_gating_delta_rule_update_cpu(
    *,
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    **_: Any,
) -> Tensor:
    """The recurrence over one more token of each sequence, shapes as above with n sequences."""
    g, beta = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    slots = initial_state_indices.long()
    q, k = _heads(q[0], v.shape[2]), _heads(k[0], v.shape[2])
    state, out = _step(initial_state_source[slots].float(), q, k, v[0], g[0], beta[0])
    initial_state_source[slots] = state.to(initial_state_source.dtype)
    return out.to(v.dtype).unsqueeze(0)


def layernorm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    z: Tensor | None = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> Tensor:
    """RMSNorm(x) * weight * activation(z), all in float32; the one use of this function that Qwen3.5 makes."""
    assert (is_rms_norm, norm_before_gate, group_size, bias) == (True, True, None, None), "not Qwen3.5's norm"
    out = _rms_norm(x.float(), weight.float(), eps)
    return (out if z is None else out * _activate(z.float(), activation)).to(x.dtype)


def _step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of n sequences: state [n, heads, V, K], q and k [n, heads, K], v [n, heads, V], g and beta [n, heads].
    Sums, not matrix products, whose rounding depends on how many sequences there are, as that of a float32 exp does."""
    state = state * g.double().exp().float()[..., None, None]
    error = (v.float() - (state * k.unsqueeze(-2)).sum(dim=-1)) * beta.unsqueeze(-1)
    state = state + error.unsqueeze(-1) * k.unsqueeze(-2)
    return state, (state * q.unsqueeze(-2)).sum(dim=-1) * q.shape[-1] ** -0.5


def _heads(x: Tensor, heads: int) -> Tensor:
    """Queries or keys [n, key heads, K] of length 1, in float32, once for each value head."""
    import torch

    x = x.float()
    x = x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + NORM_EPS)
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    import torch

    y = x.float()
    return (y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + eps) * weight).to(x.dtype)


def _activate(x: Tensor, activation: str | None) -> Tensor:
    import torch.nn.functional as F

    if activation in ("silu", "swish"):
        return F.silu(x)
    assert activation in (None, "sigmoid"), activation
    return x if activation is None else x.sigmoid()


OPERATORS: tuple[Callable[..., Any], ...] = (
    fused_sigmoid_mul_cpu,
    fused_qk_gemma_rmsnorm_cpu,
    fused_qk_gemma_rmsnorm_with_gate_cpu,
    fused_gdn_gating_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
)
"""What SGLang takes from `torch.ops.sgl_kernel`."""

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
    chunk_gated_delta_rule_cpu,
)
"""What it takes from the module `sgl_kernel.mamba`."""
