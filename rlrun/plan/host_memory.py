"""How many bytes of a node's host memory a run takes at its worst moment.

Always: an allowance for each process, and, with the optimizer on the host, its float32 weights and moments (12 bytes a
parameter that a rank has the state of) and the pinned copy of the gradients it steps with (4). While engines generate:
what an offloaded trainer has parked, and the copy of a checkpoint that is still being written. While a checkpoint is
saved: what is gathered and written.
"""

from __future__ import annotations

from rlrun.plan.layout import GIB, HOST_PROCESS, Layout, Terms
from rlrun.plan.parameters import share, stage_parameters, stage_sizes
from rlrun.plan.types import HostMemory, MemoryTerm


def host_memory(m: Layout) -> HostMemory:
    """Terms of the worst moment on one node, whose GPUs are all taken to be of the largest pipeline stage."""
    ranks = min(m.gpus_per_node, m.world)
    always = {"processes": HOST_PROCESS * (ranks + min(m.gpus_per_node, m.rollout_gpus))}
    models = [m.parameters(), *([m.parameters(scalar_head=True)] if m.critic else [])]
    owned = ranks * sum(max(_owned(m, stage) for stage in model) for model in models)
    if m.optimizer_offload:
        always |= {"optimizer": 12 * owned, "pinned gradients": 4 * owned}
    moments: dict[str, Terms] = {"save": always | {"checkpoint": _staging(m, ranks)}}
    if m.colocated and m.trainer_offload:
        moments["rollout"] = always | {"parked trainer": _parked(m, ranks, owned, models)}
        if m.async_save:
            moments["rollout"]["checkpoint copy"] = _copied(m, ranks)
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    terms = moments[moment]
    node = None if m.host_gib is None else int(m.host_gib * GIB)
    return HostMemory(moment, sum(terms.values()), node, tuple(MemoryTerm(k, v) for k, v in terms.items() if v))


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


def _staging(m: Layout, ranks: int) -> int:
    """Main weights and moments (12 bytes) and the weights, as they are written. Gathered by NCCL they are on every
    rank, gathered on the host on the first data-parallel replica; what is being gathered is there twice more (8)."""
    everywhere = m.distributed_optimizer and not m.gather_on_host
    plain_ranks = ranks if everywhere else min(ranks, m.tp * m.pp)
    expert_ranks = ranks if everywhere else min(ranks, m.etp * m.ep * m.pp)
    buffers = [(plain * plain_ranks, experts * expert_ranks) for plain, experts in m.parameters()]
    gathered = 8 if m.distributed_optimizer else 0
    return max((12 + m.weight_bytes) * sum(stage) + gathered * max(stage) for stage in buffers)


def _copied(m: Layout, ranks: int) -> int:
    """What is written beside the training: weights, main weights and moments of the first data-parallel replica. What
    comes from a GPU lies in pinned memory, whose blocks torch rounds up to powers of two: up to twice the bytes. The
    distributed optimizer's state comes from the host, where it was gathered."""
    pinned, plain = (m.weight_bytes, 12) if m.distributed_optimizer else (m.weight_bytes + 12, 0)
    models = [m.parameters(), *([m.parameters(scalar_head=True)] if m.critic else [])]
    written = sum(
        max(p * min(ranks, m.tp * m.pp) + e * min(ranks, m.etp * m.ep * m.pp) for p, e in model) for model in models
    )
    return (2 * pinned + plain) * written
