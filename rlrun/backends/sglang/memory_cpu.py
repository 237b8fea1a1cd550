"""What SGLang's memory saver does on a GPU, on a CPU: weights and KV cache are really gone while they are released.

SGLang answers /release_memory_occupation and /resume_memory_occupation without a GPU too, and moves nothing. Here their
pages go back to the machine and their addresses stay, as those of GPU memory do, and what comes back is not a number
until a push has written it: a weight that a push forgets shows in the first log-prob. With --enable-weights-cpu-backup,
which is for a model that gets no pushes, weights come back as they were, from copies (nothing is saved then).

The hooks are SGLang's own (`sglang.srt.plugins`); `launch` registers them on cpu alone.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"


def register_hooks() -> None:
    """Call in the launching process and in every child, before SGLang loads its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{UPDATER}.release_memory_occupation", _release, HookType.AROUND)
    HookRegistry.register(f"{UPDATER}.resume_memory_occupation", _resume, HookType.AROUND)


def _release(original: Callable, updater: Any, request: Any) -> Any:
    answer = original(updater, request)
    runner = updater.tp_worker.model_runner
    for tag in request.tags:
        tensors = list(_tensors(runner, tag))
        if tag == "weights" and runner.server_args.enable_weights_cpu_backup:
            runner.rlrun_backup = [tensor.untyped_storage().clone() for tensor in tensors]
        for tensor in tensors:
            give_back(tensor)
    return answer


def _resume(original: Callable, updater: Any, request: Any) -> Any:
    runner = updater.tp_worker.model_runner
    for tag in request.tags:
        tensors = list(_tensors(runner, tag))
        if tag == "weights" and runner.server_args.enable_weights_cpu_backup:
            for tensor, content in zip(tensors, runner.rlrun_backup, strict=True):
                tensor.untyped_storage().copy_(content)
            continue
        for tensor in tensors:
            fill(tensor, float("nan") if tag == "weights" and tensor.is_floating_point() else 0)
    return original(updater, request)


def give_back(tensor: Tensor) -> None:
    """Whole pages of the tensor's storage, to the machine; they read as zeros from then on."""
    storage = tensor.untyped_storage()
    begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise")


def fill(tensor: Tensor, value: float) -> None:
    """Every element of the tensor's storage."""
    whole = tensor.new_empty(0)
    whole.set_(tensor.untyped_storage())
    whole.fill_(value)


def _tensors(runner: Any, tag: str) -> Iterator[Tensor]:
    """What lies in the memory that `tag` names. Of the model the parameters, and what is kept beside them for kernels
    (such as the halves of MLA's up-projection), but not the buffers, which SGLang itself carries over."""
    if tag == "weights":
        yield from (parameter.data for parameter in runner.model.parameters())
        for module in runner.model.modules():
            yield from _plain(vars(module).values())
    elif tag == "kv_cache":
        pool = getattr(runner.token_to_kv_pool, "full_kv_pool", runner.token_to_kv_pool)
        for name in ("k_buffer", "v_buffer", "kv_buffer"):
            yield from getattr(pool, name, ())


def _plain(values: Iterable[Any]) -> Iterator[Tensor]:
    import torch

    return (value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())
