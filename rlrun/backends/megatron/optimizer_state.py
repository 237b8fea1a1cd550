"""The state of a distributed optimizer as a checkpoint has it: joined from all shards, then cut into parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

STATE = ("param", "exp_avg", "exp_avg_sq")
"""What a distributed optimizer holds of a parameter, each in float32."""

PIECE = 2**26
"""Numbers that are gathered on the host at once, from all ranks together."""


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
