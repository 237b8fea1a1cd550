"""Weights by their changes, inside SGLang: reads a file of changes, and loads the tensors that it changes.

A request to `/update_weights_from_tensor` with `load_format` of this module names the file, in place of tensors. Rank 0
of the engine applies it to the engine's copy of the weights (`Mirror`), or refuses it; every rank is told which, and
loads what changed through the model's own `load_weights`, as from any checkpoint. A refusal answers the request with
its reason and leaves weights and version as they were; an error in SGLang's own custom loaders would end the server.

The hook is SGLang's own (`sglang.srt.plugins`), around `ModelRunner.update_weights_from_tensor`, in each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from rlrun.errors import RunFailed
from rlrun.weight_sync.buckets import bucketize
from rlrun.weight_sync.files import CHANGES_FORMAT
from rlrun.weight_sync.groups import apart, group_sizes, together

if TYPE_CHECKING:
    from torch import Tensor, nn

AT_ONCE = 1 << 62
"""Bytes: one call of load_weights, but for tensors that must be kept apart."""


def register_hooks() -> None:
    """Registers the hook; SGLang applies it in each of its processes. Call in the launching process and in every
    child, before SGLang loads its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.model_executor.model_runner.ModelRunner.update_weights_from_tensor"
    HookRegistry.register(target, _around_update, HookType.AROUND)


def _around_update(original: Callable, runner: Any, *args: Any, **kwargs: Any) -> tuple[bool, str]:
    if kwargs.get("load_format") != CHANGES_FORMAT:
        return original(runner, *args, **kwargs)
    return update(runner, kwargs["named_tensors"])


def update(runner: Any, path: str) -> tuple[bool, str]:
    """Whether the model now has the weights of the update in `path`, and why not. Every rank of the engine calls it and
    gets the same answer."""
    from sglang.srt.distributed import get_tp_group

    group = get_tp_group()
    outcome = _from_first(group, _apply(runner, path) if group.rank_in_group == 0 else None)
    if isinstance(outcome, str):
        return False, outcome
    problem = ""
    try:
        load_changed(runner.model, _tensors(runner, group, outcome), outcome[2])
    except Exception as e:
        problem = f"rank {group.rank_in_group} cannot load the changed weights: {e!r}; they are mixed now"
    problems = [text for text in _from_all(group, problem) if text]
    if group.rank_in_group == 0 and problems:
        runner.rlrun_mirror.version = None  # only a full update helps
    elif group.rank_in_group == 0:
        runner.rlrun_mirror.unlink()
    return (False, problems[0]) if problems else (True, "Success")


def load_changed(model: nn.Module, tensors: Mapping[str, Tensor], changed: Collection[str]) -> None:
    """Loads the changed tensors, and those that have to arrive with them, as the groups of a weight sync want it."""
    groups = {group for group in map(together, changed) if group is not None}
    names = [name for name in tensors if name in changed or together(name) in groups]
    chosen = ((name, tensors[name]) for name in names)
    for bucket in bucketize(chosen, AT_ONCE, group_sizes(names), together, apart):
        model.load_weights(bucket)


def _apply(runner: Any, path: str) -> tuple[str, dict, set[str]] | str:
    """Rank 0: the copy's file, what lies where in it, and the changed names; or why the update is refused."""
    from rlrun.weight_sync.delta.mirror import Mirror

    if not hasattr(runner, "rlrun_mirror"):
        runner.rlrun_mirror = Mirror()
    mirror = runner.rlrun_mirror
    try:
        changed = mirror.apply(path)
    except (RunFailed, OSError) as e:
        return f"the update is refused: {e}"
    return mirror.path, mirror.places, changed


def _tensors(runner: Any, group: Any, outcome: tuple[str, dict, set[str]]) -> Mapping[str, Tensor]:
    from rlrun.weight_sync.delta.mirror import open_tensors

    if group.rank_in_group == 0:
        return runner.rlrun_mirror.tensors
    if not hasattr(runner, "rlrun_tensors"):
        runner.rlrun_tensors = open_tensors(outcome[0], outcome[1])
    return runner.rlrun_tensors


def _from_first(group: Any, value: Any) -> Any:
    import torch

    values = [value]
    if group.world_size > 1:
        torch.distributed.broadcast_object_list(values, src=group.ranks[0], group=group.cpu_group)
    return values[0]


def _from_all(group: Any, value: Any) -> list[Any]:
    import torch

    values = [value]
    if group.world_size > 1:
        values = [None] * group.world_size
        torch.distributed.all_gather_object(values, value, group=group.cpu_group)
    return values
