"""The state of an optimizer as a checkpoint has it: by parameter, under the names of the parameters.

Megatron makes one optimizer of all parameters, or two where experts are spread over ranks by themselves. Nothing in a
checkpoint tells which: all tensors are named after their parameters, and all parameters have made the same number of
steps. A distributed optimizer's state is joined from all shards, then cut into parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from rlrun.backends.megatron import mixed_optimizer

STATE = ("param", "exp_avg", "exp_avg_sq")
"""What a distributed optimizer holds of a parameter, each in float32."""

PIECE = 2**26
"""Numbers that are gathered on the host at once, from all ranks together."""

ON_HOST = {"distrib_optim_fully_reshardable_mem_efficient": True}
"""Shards are gathered through gloo, on the first data-parallel rank alone: no GPU memory, and one copy on a host."""


def inner(optimizer: MegatronOptimizer) -> list[MegatronOptimizer]:
    """The optimizers of which it consists."""
    return getattr(optimizer, "chained_optimizers", [optimizer])


def is_distributed(optimizer: MegatronOptimizer) -> bool:
    return all(isinstance(part, DistributedOptimizer) for part in inner(optimizer))


def sharded(
    optimizer: MegatronOptimizer, model_state: dict[str, Any], metadata: dict[str, Any], is_loading: bool
) -> dict[int, Any]:
    """Main weights and moments by inner optimizer, each a shard of the tensor of its whole parameter; `model_state` is
    the model's sharded state. Collective."""
    found: dict[int, Any] = {}
    for index, part in enumerate(inner(optimizer)):
        fill(part)
        if isinstance(part, DistributedOptimizer):
            part.get_parameter_state_dp_zero = functools.partial(joined, part)
            # It has this group when it was built to gather on the host.
            how = ON_HOST if part.data_parallel_group_gloo is not None else {}
            found[index] = part.sharded_param_state_fully_reshardable(model_state, is_loading, metadata | how) or {}
        else:
            found[index] = mixed_optimizer.sharded(part, model_state, is_loading)
    return found


@torch.no_grad()
def load(optimizer: MegatronOptimizer, tensors: dict[int, Any], step: float) -> None:
    """Takes over what `dist_checkpointing.load` made of `sharded`, and the number of steps.

    Stock DistributedOptimizer.load_state_dict, with torch's AdamW (without TransformerEngine and Apex), (1) looks for a
    `step` among each parameter's saved tensors, where there is none, and raises KeyError; (2) hands the same `step`
    tensor to all parameters, each of which then counts every other's steps too: training goes on with wrong bias
    corrections, silently. So the steps are out of the way of the load, and every parameter gets one of its own.
    """
    for index, part in enumerate(inner(optimizer)):
        own = tensors.get(index, {})  # without parameters on this rank there is nothing
        if isinstance(part, DistributedOptimizer):
            for state in part.optimizer.state.values():
                state.pop("step", None)
            part.load_parameter_state_from_fully_reshardable(own)
        else:
            mixed_optimizer.load(part, own)
        for parameter in _parameters(part):
            part.optimizer.state[parameter]["step"] = torch.tensor(step)


def fill(part: MegatronOptimizer) -> None:
    """Gives torch's AdamW its state at step 0, where it has none yet."""
    for parameter in _parameters(part):
        state = part.optimizer.state[parameter]
        if "step" not in state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
            state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)


def step(optimizer: MegatronOptimizer) -> float:
    """How many steps the parameters have made: all the same."""
    counts = {float(part.optimizer.state[p]["step"]) for part in inner(optimizer) for p in _parameters(part)}
    assert len(counts) <= 1, f"parameters have made different numbers of steps: {sorted(counts)}"
    return max(counts, default=0.0)


def saved_step(saved: dict[Any, Any]) -> float:
    """The number of steps in a checkpoint. Those of earlier versions have it among Megatron's parameter groups or, from
    an optimizer that is not distributed, beside them, and not at all at step 0 there. Raises ValueError when it is not
    in any of these places."""
    if "step" in saved:
        return float(saved["step"])
    adam = saved.get("optimizer", saved)
    if "param_groups" not in adam:
        raise ValueError("its optimizer state has a form that this version cannot read")
    group = adam["param_groups"][0]
    return float(group.get("step", adam.get("state", {}).get("common_step", 0.0)))


def _parameters(part: MegatronOptimizer) -> Iterator[Tensor]:
    for group in part.optimizer.param_groups:
        yield from group["params"]


def joined(
    optimizer: DistributedOptimizer, *, use_gloo_comm: bool, empty_data: bool, return_on_all_ranks: bool
) -> dict[Any, Any] | None:
    """Stands in for DistributedOptimizer.get_parameter_state_dp_zero."""
    if use_gloo_comm and not empty_data:
        return gather_on_host(optimizer)
    return space_buckets(
        optimizer, use_gloo_comm=use_gloo_comm, empty_data=empty_data, return_on_all_ranks=return_on_all_ranks
    )


def gather_on_host(optimizer: DistributedOptimizer) -> dict[Any, Any] | None:
    """Main weights and moments of all shards on the first data-parallel rank, by buffer; None on the others.

    In pieces. The stock method has 12 bytes of each sharded parameter and 12 of every parameter beside the result.
    """
    group = optimizer.data_parallel_group_gloo
    first, size = dist.get_process_group_ranks(group)[0], group.size()
    step = max(1, PIECE // size)
    state: dict[Any, Any] = {"buckets_coalesced": True}
    for index, buffer in enumerate(optimizer.buffers):
        ((dtype, bucket_ranges),) = optimizer.gbuf_ranges[index].items()
        joined = {key: torch.zeros(buffer.numel, device="cpu") for key in STATE} if group.rank() == 0 else {}
        for bucket, ranges in zip(buffer.buckets, bucket_ranges, strict=True):
            whole = slice(bucket.offset, bucket.offset + bucket.grad_data.numel())
            for key in STATE:
                shard = _shard(optimizer, ranges["param_map"], key, bucket.grad_data.numel() // size)
                for start in range(0, len(shard), step):
                    piece = shard[start : start + step]
                    pieces = [torch.empty_like(piece) for _ in range(size)] if joined else None
                    dist.gather(piece, pieces, first, group)
                    for rank, part in enumerate(pieces or ()):
                        joined[key][whole].view(size, -1)[rank, start : start + len(part)] = part
                del shard, piece, pieces  # before the next one is laid out
        state[index] = {dtype: joined}
    return state if group.rank() == 0 else None


def _shard(optimizer: DistributedOptimizer, places: dict[Any, Any], key: str, numel: int) -> Tensor:
    """This rank's part of a bucket, with zeros where it is padded."""
    shard = torch.zeros(numel, device="cpu")
    for parameter, place in places.items():
        part = optimizer._get_main_param_and_optimizer_states(parameter)[key]
        shard[place["gbuf_local"].start : place["gbuf_local"].end] = part.detach()
    return shard


def space_buckets(optimizer: DistributedOptimizer, **kwargs: Any) -> dict[Any, Any] | None:
    """DistributedOptimizer.get_parameter_state_dp_zero, with the padding between buckets put back.

    The stock method joins the buckets of a buffer without the padding at their ends, and its caller,
    `sharded_param_state_fully_reshardable`, cuts parameters out of the result at positions that count it: everything
    behind a padded bucket is saved shifted. A tied embedding under pipeline parallelism has a bucket of its own.
    """
    state = DistributedOptimizer.get_parameter_state_dp_zero(optimizer, **kwargs)
    if state is None:
        return None
    for index, buffer in enumerate(optimizer.buffers):
        for tensors in state[index].values():
            for key, joined in tensors.items():
                if isinstance(joined, Tensor):
                    tensors[key] = spaced = joined.new_zeros(buffer.numel)
                    start = 0
                    for bucket in buffer.buckets:
                        length = bucket.numel_unpadded
                        spaced[bucket.offset : bucket.offset + length] = joined[start : start + length]
                        start += length
    return state


def cut(state: Any) -> set[int]:
    """Gives every tensor of an optimizer's sharded state memory of its own, and returns where that lies.

    They are views of the joined buffers, which Megatron's writer would copy while all of the buffers are still there:
    24 bytes a parameter. Copied here, one buffer after the other, a buffer is gone when its last view is: 16.
    """
    apply_factories(state)  # which cut some of them once more
    views: dict[int, list[ShardedTensor]] = {}
    for shard in _sharded(state):
        views.setdefault(shard.data.untyped_storage().data_ptr(), []).append(shard)
    fresh = set()
    for shards in views.values():
        for shard in shards:
            shard.data = shard.data.clone()
            fresh.add(shard.data.untyped_storage().data_ptr())
    return fresh


def _sharded(state: Any) -> list[ShardedTensor]:
    if isinstance(state, ShardedTensor):
        return [state] if state.data is not None else []
    items = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [shard for item in items for shard in _sharded(item)]
