"""Everything Megatron-core 0.16.1 needs from us to run without a GPU. Inert where CUDA is available.

Megatron-core has no device setting: it writes `device="cuda"`, `tensor.cuda()` and `torch.cuda.current_device()` where
it wants its own device. `install()` replaces eight process-wide functions; `shim()` is a context, to be entered by the
thread that runs Megatron, which redirects what is left. Nothing here changes an algorithm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from megatron.core.tensor_parallel import random as mcore_random
from megatron.core.transformer.moe import token_dispatcher
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def install() -> None:
    """Replaces the CUDA functions that Megatron-core calls by name. May be called again; does nothing with CUDA.

    | stock megatron-core                                          | without a GPU     | instead                     |
    |--------------------------------------------------------------|-------------------|-----------------------------|
    | `torch.cuda.current_device()`: layers, RoPE, DDP, p2p        | raises            | the CPU device              |
    | `torch.cuda.synchronize()`: pipeline sends, saving           | raises            | nothing to wait for         |
    | `torch.cuda.Stream`, `stream`, `current_stream`: experts     | raises            | one stream, always current  |
    | `CudaRNGStatesTracker`: weight initialisation, dropout       | raises            | `CpuRNGStatesTracker`       |
    | `_get/_set_cuda_rng_state`: activation recomputation         | raises            | covered by the CPU state    |
    | `maybe_move_tensor_to_cpu`: how many tokens an expert gets   | stays a tensor    | numbers, as from a GPU      |
    | `jit_fuser` is torch.compile                                 | compiles with g++ | eager                       |
    """
    if torch.cuda.is_available() or isinstance(mcore_random._CUDA_RNG_STATE_TRACKER, CpuRNGStatesTracker):
        return
    torch.cuda.current_device = lambda: CPU
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.Stream = CpuStream  # type: ignore[misc, assignment]
    torch.cuda.current_stream = lambda device=None: ONLY_STREAM  # type: ignore[assignment, return-value]
    torch.cuda.stream = lambda stream: contextlib.nullcontext()  # type: ignore[assignment, return-value]
    torch.compiler.set_stance("force_eager")
    mcore_random._CUDA_RNG_STATE_TRACKER = CpuRNGStatesTracker()
    mcore_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    token_dispatcher.maybe_move_tensor_to_cpu = _on_host
    mcore_random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    mcore_random._set_cuda_rng_state = lambda new_state, device=-1, graph_safe=False: None


class CpuStream:
    """On a CPU everything happens in order: all streams are the same one."""

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def record_event(self) -> CpuStream:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuStream)

    def __hash__(self) -> int:
        return hash(CpuStream)


ONLY_STREAM = CpuStream()


def shim() -> AbstractContextManager[Any]:
    """The redirection, as a context. Thread-local, so every entry into Megatron takes its own; reentrant."""
    return contextlib.nullcontext() if torch.cuda.is_available() else CudaAsCpu()


class CudaAsCpu(TorchFunctionMode):
    """Torch functions called with a CUDA device run on the CPU; nothing else is touched.

    * `device="cuda"` in a factory (optimizer, gradient clipping, schedules): the CPU device.
    * `pin_memory=True`: dropped; pinning needs a CUDA driver.
    * `tensor.cuda()` (the tied embedding under pipeline parallelism): the tensor itself.
    * `tensor.type()`, which the optimizers and gradient clipping compare with "torch.cuda.FloatTensor" and its
      relatives to tell the dtype: the CUDA spelling of the same dtype.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Megatron's `maybe_move_tensor_to_cpu`, which leaves a tensor that is there already as it is: not as numbers."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


def _is_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or getattr(device, "type", None) == "cuda"


class CpuRNGStatesTracker(mcore_random.CudaRNGStatesTracker):
    """Megatron's named generator states, kept for the CPU generator. Same seeds, same bookkeeping."""

    _current_state_name: str

    def add(self, name: str, seed: int) -> None:
        self._is_initialized = True
        assert seed not in self.seeds_, f"seed {seed} is taken"
        assert name not in self.states_, f"generator {name} exists already"
        self.seeds_.add(seed)
        self.states_[name] = torch.Generator("cpu").manual_seed(seed).get_state()

    @contextlib.contextmanager
    def fork(self, name: str = mcore_random._MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
        outside, outside_name = torch.get_rng_state(), self._current_state_name
        torch.set_rng_state(self.states_[name])
        self._current_state_name = name
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)
            self._current_state_name = outside_name
