"""The gated delta rule and its convolution as they are defined, one token after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One sample. q, k [t, key heads, dk] of any length, v [t, value heads, dv], g, beta [t, value heads]."""
    shared = v.shape[1] // k.shape[1]
    q, k = ((x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(shared, 1) for x in (q, k))
    state = v.new_zeros(v.shape[1], k.shape[-1], v.shape[-1])
    outputs = []
    for t in range(len(v)):
        state = state * g[t].exp()[:, None, None]
        error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * error)
        outputs.append(torch.einsum("hkv,hk->hv", state, q[t]) / k.shape[-1] ** 0.5)
    return torch.stack(outputs) if outputs else v


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """One sample: x [t, channels], weight [channels, 1, K]; the last weight is that of the token itself."""
    width = weight.shape[-1]
    rows = []
    for t in range(len(x)):
        seen = range(max(0, t - width + 1), t + 1)
        total = sum((weight[:, 0, width - 1 - (t - s)] * x[s] for s in seen), torch.zeros_like(x[0]))
        rows.append(total * torch.sigmoid(total))
    return torch.stack(rows) if rows else x


def rule_inputs(length: int, key_heads: int = 2, value_heads: int = 4, dk: int = 5, dv: int = 3, seed: int = 0):
    """q, k, v, g, beta of `recurrent`, float64. Decays reach from hardly any to all of the state."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(length, key_heads, dk), normal(length, key_heads, dk), normal(length, value_heads, dv)
    g = -torch.exp(3 * normal(length, value_heads) - 2)
    return q, k, v, g, torch.sigmoid(normal(length, value_heads))
