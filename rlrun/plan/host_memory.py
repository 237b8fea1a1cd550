"""How many bytes of a node's host memory a run takes at its worst moment.

Always: an allowance for each process, and, with the optimizer on the host, its float32 weights and moments (12 bytes a
parameter that a rank has the state of) and the pinned copy of the gradients it steps with (4); with delta transport, on
the node of trainer rank 0, the weights as the engines have them, pinned, and a copy for each engine there; the weights
of frozen models whose engines make room for the trainer, which nobody would send again. While
engines generate: what an offloaded trainer has parked, and the copy of a checkpoint that is still being written. While
a checkpoint is saved: what is gathered and written.
"""

from __future__ import annotations

import operator

from rlrun.plan.layout import GIB, HOST_PROCESS, Layout, Terms
from rlrun.plan.parameters import count_parameters, share, stage_parameters, stage_sizes
from rlrun.plan.types import HostMemory, MemoryTerm


def host_memory(m: Layout) -> HostMemory:
    """Terms of the worst moment on one node, whose GPUs are all taken to be of the largest pipeline stage."""
    ranks = min(m.gpus_per_node, m.world)
    always = {"processes": HOST_PROCESS * (ranks + min(m.gpus_per_node, m.rollout_gpus))}
    models = [m.parameters(), *([m.parameters(scalar_head=True)] if m.critic else [])]
    owned = ranks * sum(max(_owned(m, stage) for stage in model) for model in models)
    if m.optimizer_offload:
        always |= {"optimizer": 12 * owned, "pinned gradients": 4 * owned}
    if m.frozen_copies:
        always["frozen models"] = m.frozen_copies
    if m.delta_sync:
        always |= _delta_copies(m)
    moments: dict[str, Terms] = {"save": always | {"checkpoint": _staging(m, models, ranks)}}
    if m.colocated and m.trainer_offload:
        moments["rollout"] = always | {"parked trainer": _parked(m, ranks, owned, models)}
        if m.async_save:
            moments["rollout"]["checkpoint copy"] = _copy(m, models, ranks)
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    terms = moments[moment]
    node = None if m.host_gib is None else int(m.host_gib * GIB)
    return HostMemory(moment, sum(terms.values()), node, tuple(MemoryTerm(k, v) for k, v in terms.items() if v))


def _delta_copies(m: Layout) -> Terms:
    """Pinned memory has up to twice the bytes, as torch rounds its blocks up to powers of two. An engine's copy is in a
    file, which the temporary folder may keep in memory."""
    copy = m.weight_bytes * count_parameters(m.spec)
    engines = -(-min(m.gpus_per_node, m.rollout_gpus) // (m.engine_tp * m.engine_pp))
    return {"delta snapshot": 2 * copy, "engine copies": engines * copy}


def _owned(m: Layout, stage: tuple[int, int]) -> int:
    return sum(share(count, ranks) for count, ranks in zip(stage, m.shards, strict=True))


def _parked(m: Layout, ranks: int, owned: int, models: list[list[tuple[int, int]]]) -> int:
    """Weights and gradients, the optimizer unless it is on the host anyway, and frozen models."""
    largest = [max(sum(stage) for stage in model) for model in models]
    state = (m.weight_bytes + m.gradient_bytes) * sum(largest) + (m.weight_bytes * largest[0] if m.reference else 0)
    if m.teacher is not None:
        stages = stage_parameters(m.teacher, m.tp, stage_sizes(m.teacher.num_layers, m.pp), m.ep, m.etp)
        state += m.weight_bytes * max(sum(stage) for stage in stages)
    optimizer = 0 if m.optimizer_offload else (m.master_bytes + 2 * m.moment_bytes) * owned
    return ranks * state + optimizer


def _staging(m: Layout, models: list[list[tuple[int, int]]], ranks: int) -> int:
    """What a save takes at its worst moment. The policy and the critic are gathered one after the other; beside
    training the policy's copy is still there when the critic's turn comes."""
    peaks = [max(_peak(m, stage, ranks) for stage in model) for model in models]
    if m.async_save:
        peaks = [peak + _copy(m, models[:index], ranks) for index, peak in enumerate(peaks)]
    return max(peaks)


def _peak(m: Layout, stage: tuple[int, int], ranks: int) -> int:
    """Of one model: main weights and moments (12 bytes) are joined, cut into parameters and written with the weights.

    Joined by NCCL they are on every rank, beside every rank's own shard, and one of the three is there twice more: as
    it was received, and in one piece. Joined by gloo, in pieces, they are on the first data-parallel replica alone, and
    cutting takes one of the three once more.
    """
    total = 0
    for count, first, sharing in zip(stage, _first_replica(m, ranks), m.shards, strict=True):
        if m.distributed_optimizer and not m.gather_on_host:
            total += (20 * count + 12 * share(count, sharing)) * ranks
        else:
            total += max(16 if m.distributed_optimizer else 0, _written(m)) * count * first
    return total


def _first_replica(m: Layout, ranks: int) -> tuple[int, int]:
    """Ranks of a node that write (what is not an expert, experts)."""
    return min(ranks, m.tp * m.pp), min(ranks, m.etp * m.ep * m.pp)


def _written(m: Layout) -> int:
    """Bytes a parameter of what is written: weights, main weights and moments. What comes from a GPU lies in pinned
    memory, whose blocks torch rounds up to powers of two: up to twice the bytes. A distributed optimizer's state was
    joined on the host."""
    return 2 * m.weight_bytes + 12 if m.distributed_optimizer else 2 * (m.weight_bytes + 12)


def _copy(m: Layout, models: list[list[tuple[int, int]]], ranks: int) -> int:
    """What is written of these models beside the training."""
    first = _first_replica(m, ranks)
    return _written(m) * sum(max(sum(map(operator.mul, stage, first)) for stage in model) for model in models)
