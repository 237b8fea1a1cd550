"""The gated delta rule, differentiable, and the choice of the kernels that compute it.

One head has a state S [dk, dv] that every token decays, corrects and reads (Yang et al., "Gated Delta Networks",
2412.06464, with the decay as its logarithm g):

    S_t = e^{g_t} S_{t-1} + k_t u_t^T      u_t = beta_t (v_t - e^{g_t} S_{t-1}^T k_t)      o_t = S_t^T q_t / sqrt(dk)

`chunked` solves it for 64 tokens at a time: with b the cumulative sum of g within a chunk, and S_0 the state before it,

    (I + L) U = diag(beta) (V - diag(e^b) K S_0)             L_ij = beta_i e^{b_i - b_j} k_i.k_j for j < i
    O = diag(e^b) Q S_0 + M U                                M_ij = e^{b_i - b_j} q_i.k_j for j <= i
    S_C = e^{b_C} S_0 + (diag(e^{b_C - b}) K)^T U

so that everything but the two products with S_0 is done for all chunks at once.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlrun.errors import RunFailed

CHUNK = 64
"""Tokens that are solved at a time, as in the published kernels."""

EPS = 1e-6
"""Beside the squared norm of queries and keys; what Hugging Face's class and the kernels have."""

PACKAGES = {"fla": ("fla.ops.gated_delta_rule", "flash-linear-attention"), "flashqla": ("flash_qla", "flash-qla")}
"""Kernels of other packages: the module that has `chunk_gated_delta_rule`, and what installs it."""


def choose_kernel(wanted: str, device: torch.device, dtype: torch.dtype) -> str:
    """`wanted` (`model.gdn_backend`) as one of fla, flashqla, torch: auto is fla for bfloat16 on CUDA where it is
    installed, otherwise torch. RunFailed when a wanted package is not there."""
    if wanted == "auto":
        usable = device.type == "cuda" and dtype == torch.bfloat16 and importlib.util.find_spec("fla") is not None
        wanted = "fla" if usable else "torch"
    if wanted != "torch":
        _kernel(wanted)
    return wanted


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    bounds: Sequence[int] | None = None,
    kernel: str = "torch",
    recompute: bool = False,
) -> Tensor:
    """q, k [b, s, key heads, dk], not normalised yet (every head is brought to length 1 here); v [b, s, value heads,
    dv], of which each key head serves an equal run; g <= 0 and beta in (0, 1) [b, s, value heads], float32. Returns
    [b, s, value heads, dv] in v's dtype. With `bounds` (0, ..., s) the one row (b = 1) holds samples end to end, each
    of which starts from an empty state; without, each row is a sample. `kernel`: what `choose_kernel` returned.

    `recompute` keeps only the arguments for the backward pass, as the kernels of the packages do anyway; torch's own
    otherwise keep some 9 kB for each token and value head of 128 columns.
    """
    if kernel == "torch":
        rows, width = v.shape[:2]
        bounds = range(0, rows * width + 1, width) if bounds is None else bounds
        q, k, flat, g, beta = (x.flatten(0, 1) for x in (q, k, v, g, beta))
        arguments = (q, k, flat, g, beta, tuple(bounds))
        if recompute and torch.is_grad_enabled():
            return checkpoint(chunked, *arguments, use_reentrant=False, preserve_rng_state=False).view(v.shape)
        return chunked(*arguments).view(v.shape)
    assert bounds is None or len(v) == 1, "packed samples are one row"
    return {"fla": _fla, "flashqla": _flashqla}[kernel](q, k, v, g, beta, bounds)


def normalized(x: Tensor) -> Tensor:
    """Every head's vector (the last dimension) at length 1, up to EPS; float32 inside, back in x's dtype."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPS)).to(x.dtype)


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, bounds: tuple[int, ...]) -> Tensor:
    """`gated_delta_rule` in torch, on rows without a batch dimension: q, k [t, key heads, dk], v [t, value heads, dv],
    g, beta [t, value heads] -> [t, value heads, dv]. Float32 inside (float64 when v is).

    Chunks never reach over the end of a sample: the last one of each is filled up with tokens that change nothing.
    The states go from chunk to chunk for all samples and heads at once; the number of steps is that of the longest.
    """
    assert bounds[0] == 0, "the first sample begins with the row"
    assert bounds[-1] == len(v), "the bounds do not cover the row"
    layout = chunks_of(bounds, CHUNK, v.device)
    (heads, dim), returned = k.shape[1:], v.dtype
    dtype = torch.float64 if v.dtype == torch.float64 else torch.float32
    q, k = (_cut(normalized(x.to(dtype)), layout).unsqueeze(2) for x in (q, k))  # [n, heads, 1, C, dk]
    v, g, beta = (_cut(x.to(dtype), layout).unflatten(1, (heads, -1)) for x in (v, g, beta))  # [n, heads, r, C(, dv)]

    # In float64: the difference of two large sums may be small.
    total = g.double().cumsum(-1)
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).triu(1)
    # Masked before the exponential, which is infinite for what is yet to come.
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).to(dtype).masked_fill(future, -torch.inf).exp()
    grown = total.to(dtype).exp().unsqueeze(-1)
    right = torch.cat([beta.unsqueeze(-1) * v, (beta.unsqueeze(-1) * grown) * k], dim=-1)
    lower = beta.unsqueeze(-1) * decay * (k @ k.mT)
    solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    own, seen = solved.split([v.shape[-1], dim], dim=-1)

    left = (total[..., -1:] - total).to(dtype).exp().unsqueeze(-1) * k
    states, updates = _scan(own, seen, left, grown[..., -1:, :], layout.active)
    q = q * dim**-0.5
    out = (grown * q) @ states + (decay * (q @ k.mT)) @ updates
    by_slot = out.permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)
    return by_slot.index_select(0, layout.places).to(returned)


def _scan(own: Tensor, seen: Tensor, left: Tensor, kept: Tensor, active: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and the chunk's updates U = own - seen S_0; after it the state is kept S_0 +
    left^T U. Chunks are in the layout's order: the first of every sample, then the second, ..."""
    state = own.new_zeros(active[0] if active else 0, *own.shape[1:3], seen.shape[-1], own.shape[-1])
    states, updates = [], []
    # Cut by `split`, whose backward joins the pieces once; slices would each fill a whole gradient.
    for o, s, le, ke in zip(*(x.split(active) for x in (own, seen, left, kept)), strict=True):
        state = state[: len(o)]
        states.append(state)
        updates.append(o - s @ state)
        state = ke * state + le.mT @ updates[-1]
    return torch.cat(states), torch.cat(updates)


@dataclass(frozen=True)
class Chunks:
    """How t tokens lie in n chunks. `slots` [n * C]: the token of each slot, t where there is none. `places` [t]: the
    slot of each token. `active`: how many samples have a first chunk, a second, ...; they sum to n. The samples that
    have one more chunk than others come first, so that those still active are always a beginning of all."""

    slots: Tensor
    places: Tensor
    active: tuple[int, ...]


@functools.lru_cache(maxsize=16)
def chunks_of(bounds: tuple[int, ...], size: int, device: torch.device) -> Chunks:
    """The layers of a model ask for the same one after another."""
    starts, ends = np.array(bounds[:-1]), np.array(bounds[1:])
    counts = -(-(ends - starts) // size)
    order = np.argsort(-counts, kind="stable")
    active = [int((counts > step).sum()) for step in range(counts.max(initial=0))]
    first = np.concatenate([starts[order[:n]] + step * size for step, n in enumerate(active)] or [starts[:0]])
    end = np.concatenate([ends[order[:n]] for n in active] or [ends[:0]])
    slots = first[:, None] + np.arange(size)
    there = (slots < end[:, None]).reshape(-1)
    slots = np.where(there, slots.reshape(-1), bounds[-1])
    places = np.empty(bounds[-1], np.int64)
    places[slots[there]] = np.flatnonzero(there)
    return Chunks(torch.from_numpy(slots).to(device), torch.from_numpy(places).to(device), tuple(active))


def _cut(x: Tensor, layout: Chunks) -> Tensor:
    """[t, heads, ...] -> [n, heads, C, ...]; slots without a token are 0, which neither writes nor decays."""
    rows = torch.cat([x, x.new_zeros(1, *x.shape[1:])]).index_select(0, layout.slots)
    return rows.unflatten(0, (-1, CHUNK)).transpose(1, 2)


def _fla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, bounds: Sequence[int] | None) -> Tensor:
    """Triton kernels of flash-linear-attention; bfloat16 and float16. Older releases want a key head for each value
    head. https://github.com/fla-org/flash-linear-attention"""
    shared = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(shared, dim=2) for x in (q, k)) if shared > 1 else (q, k)
    cu_seqlens = None if bounds is None else torch.tensor(bounds, dtype=torch.long, device=q.device)
    return _kernel("fla")(q, k, v, g, beta, use_qk_l2norm_in_kernel=True, cu_seqlens=cu_seqlens)[0]


def _flashqla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, bounds: Sequence[int] | None) -> Tensor:
    """TileLang kernels of FlashQLA, for Hopper and data-centre Blackwell; bfloat16 and float16, heads of 128. Its first
    release does not normalise. https://github.com/QwenLM/FlashQLA"""
    q, k = normalized(q), normalized(k)
    cu_seqlens = None if bounds is None else torch.tensor(bounds, dtype=torch.int32, device=q.device)
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    return _kernel("flashqla")(q=q, k=k, v=v, g=g, beta=beta, cu_seqlens=cu_seqlens)[0]


@functools.cache
def _kernel(name: str) -> Any:
    module, package = PACKAGES[name]
    other = "or set model.gdn_backend to torch"
    try:
        function = importlib.import_module(module).chunk_gated_delta_rule
    except Exception as error:  # a package of kernels fails in many ways where its GPU or compiler is not
        summary = f"model.gdn_backend {name} needs {module}.chunk_gated_delta_rule, which is not there: {error}"
        raise RunFailed("trainer", summary, f"pip install {package} on every node with a trainer, {other}") from error
    heads_first = inspect.signature(function).parameters.get("head_first")
    if heads_first is not None and heads_first.default is True:
        summary = f"the installed {package} has heads before tokens, which newer releases and this trainer do not"
        raise RunFailed("trainer", summary, f"pip install --upgrade {package}, {other}")
    return function
