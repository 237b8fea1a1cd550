"""Seeded sampling on CPU: the same ids, seed and weights give the same tokens, in any batch and after a restart.

SGLang has this as `--enable-deterministic-inference`, which does three things: it hands each request's
`sampling_seed` to the sampler, samples with it, and makes matrix products independent of the batch. The last two are
Triton kernels, so on a GPU the stock flag is all we need, and on CPU two functions are replaced, through SGLang's own
hook registry (`sglang.srt.plugins`, applied in every process by `load_plugins`), and torch_native attention is added
to the backends that the flag accepts, through SGLang's own `add_deterministic_attention_backend_choices`.

Nothing here runs unless the flag is given. With it SGLang turns the prefix cache off for torch_native.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

ROWS = 32
"""Rows of one matrix product. MKL picks its kernel, and with it the order of summation, by the number of rows."""

_library = None  # keeps the operator registrations alive


def register_cpu_hooks() -> None:
    """Registers the hooks; SGLang applies them in each of its processes. Call before the server's arguments are read,
    in the launching process and in every child."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import add_deterministic_attention_backend_choices

    add_deterministic_attention_backend_choices(["torch_native"])
    HookRegistry.register("sglang.srt.layers.sampler.multinomial_with_seed", sample_with_seed, HookType.REPLACE)
    HookRegistry.register(
        "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode", enable_batch_invariant_mode, HookType.REPLACE
    )


def sample_with_seed(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One index per row of `logprobs` [n, m] (natural log, need not be normalised), returned as [n, 1] int64.

    Inverse transform sampling: row i takes the first index whose cumulative probability exceeds a uniform number that
    depends on (seed[i], positions[i]) alone. Replaces `multinomial_with_seed`, same signature.
    """
    import torch

    cumulative = logprobs.to(torch.float64).exp().cumsum(dim=-1)
    uniform = torch.from_numpy(uniforms(seed.numpy(), positions.numpy())).unsqueeze(-1)
    # Strictly below the total, and past every index of probability 0: such an index is never returned.
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)


def uniforms(seed: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Uniform numbers in (0, 1), multiples of 2**-49, one for each (seed, position), both non-negative int64 [n].

    SplitMix64's finalizer (Steele, Lea, Flood 2014; constants of Stafford's mix 13), once over the seed and once more
    with the position, so that neighbouring seeds and positions are unrelated.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64
        state = _mix(seed.astype(np.uint64) * golden + golden)
        state = _mix(state + (positions.astype(np.uint64) + np.uint64(1)) * golden)
    return ((state >> np.uint64(16)).astype(np.float64) + 0.5) * 2.0**-48


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def enable_batch_invariant_mode(enable_bmm: bool = True) -> None:
    """Makes a row of a CPU matrix product independent of the other rows and of their number, in this process, and a
    sigmoid independent of its place, which routers take of a few numbers a token.

    Replaces SGLang's function of the same name, which knows accelerators only. `enable_bmm`: batched products as well,
    with which latent attention takes the tokens of all requests through its heads.
    """
    import torch

    global _library
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            _library.impl("mm", matmul_in_blocks, "CPU")
            _library.impl("addmm", _addmm_in_blocks, "CPU")
            _library.impl("sigmoid", sigmoid, "CPU")
            if enable_bmm:
                _library.impl("bmm", bmm_in_blocks, "CPU")
                _library.impl("bmm.out", _bmm_in_blocks_out, "CPU")


def matmul_in_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [n, k] @ b [k, m], always `ROWS` rows at a time; the last block is filled up with zeros."""
    import torch

    n = a.shape[0]
    padded = -(-n // ROWS) * ROWS
    if padded != n:
        a = torch.cat([a, a.new_zeros(padded - n, a.shape[1])])
    out = a.new_empty(padded, b.shape[1])
    for start in range(0, padded, ROWS):
        # The out= variant is an operator of its own, so this does not come back here.
        torch.mm(a[start : start + ROWS], b, out=out[start : start + ROWS])
    return out[:n]


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """By way of float64: torch computes the bulk of a tensor with vector instructions and its end without, and in
    float32 the two differ in the last bit."""
    import torch

    y = (1 + (-x.double()).exp()).reciprocal()
    return y.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


def bmm_in_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [p, n, k] @ b [p, k, m], likewise `ROWS` of the n rows at a time."""
    import torch

    count, n, _ = a.shape
    padded = -(-n // ROWS) * ROWS
    if padded != n:
        a = torch.cat([a, a.new_zeros(count, padded - n, a.shape[2])], dim=1)
    out = a.new_empty(padded // ROWS, count, ROWS, b.shape[2])
    for block, start in enumerate(range(0, padded, ROWS)):
        # With beta 0 this is a bmm under another name, which does not come back here.
        torch.baddbmm(out[block], a[:, start : start + ROWS], b, beta=0, out=out[block])
    return out.transpose(0, 1).reshape(count, padded, b.shape[2])[:, :n]


def _bmm_in_blocks_out(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(bmm_in_blocks(a, b))


def _addmm_in_blocks(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    return bias * beta + matmul_in_blocks(a, b) * alpha
