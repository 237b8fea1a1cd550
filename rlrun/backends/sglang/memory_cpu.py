"""What SGLang's memory saver does on a GPU, on a CPU: weights and KV cache are really gone while they are released.

SGLang answers /release_memory_occupation and /resume_memory_occupation without a GPU too, and moves nothing. Here the
storages are emptied, so that a run which takes turns frees the memory of this machine as well, and what comes back is
not a number until a push has written it: a weight that a push forgets shows in the first log-prob. With
--enable-weights-cpu-backup, for a model that gets no pushes, weights come back as they were, from copies in pageable
memory: nothing is freed then.

The hooks are SGLang's own (`sglang.srt.plugins`); `launch` registers them on cpu alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, UntypedStorage

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
        kept = tag == "weights" and runner.server_args.enable_weights_cpu_backup
        for tensor in _tensors(runner, tag):
            storage = tensor.untyped_storage()
            if storage.size():
                content = storage.clone() if kept else None
                _released(runner).setdefault(tag, []).append((tensor, storage.size(), content))
                storage.resize_(0)
    return answer


def _resume(original: Callable, updater: Any, request: Any) -> Any:
    runner = updater.tp_worker.model_runner
    for tag in request.tags:
        for tensor, nbytes, content in _released(runner).pop(tag, []):
            tensor.untyped_storage().resize_(nbytes)
            if content is not None:
                tensor.untyped_storage().copy_(content)
            else:
                fill(tensor, float("nan") if tag == "weights" and tensor.is_floating_point() else 0)
    return original(updater, request)


def fill(tensor: Tensor, value: float) -> None:
    """Every element of the tensor's storage."""
    whole = tensor.new_empty(0)
    whole.set_(tensor.untyped_storage())
    whole.fill_(value)


def _released(runner: Any) -> dict[str, list[tuple[Tensor, int, UntypedStorage | None]]]:
    """By tag: what was emptied, how many bytes it had, and a copy of them where there is to be one."""
    if not hasattr(runner, "rlrun_released"):
        runner.rlrun_released = {}
    return runner.rlrun_released


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
