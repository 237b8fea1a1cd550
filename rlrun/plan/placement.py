"""GPU counts -> slots, trainer ranks and engines. Arithmetic only; `rules/placement.py` has refused what cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.plan.groups import Group, engine_blocks, has_trainer, rollout_gpus
from rlrun.plan.types import Slot


@dataclass(frozen=True)
class EnginePorts:
    """What one engine listens on."""

    http: int
    dist: int
    bootstrap: int | None  # of a prefill engine


DP_ATTENTION_PORTS = 30
"""Ports above its dist_port that an engine with data-parallel attention takes, besides one a rank."""


def slots_needed(placement: Any) -> int:
    """Slots of the run: trainer and engines share them when colocated, else each has its own."""
    trainer = placement.trainer.gpus if has_trainer(placement) else 0
    rollout = rollout_gpus(placement)
    return max(trainer, rollout) if placement.mode == "colocated" else trainer + rollout


def taken(placement: Any) -> set[tuple[int, int]]:
    """(node, GPU) of what is reserved for others."""
    return {(entry.node, gpu) for entry in placement.reserved for gpu in entry.gpus}


def free_gpus(placement: Any) -> list[tuple[int, int]]:
    """(node, GPU) of what the run may use, in the order in which slots are numbered."""
    reserved = taken(placement)
    every = ((node, gpu) for node in range(placement.num_nodes) for gpu in range(placement.gpus_per_node))
    return [place for place in every if place not in reserved]


def slots(placement: Any) -> tuple[Slot, ...]:
    """The slots in use, numbered from 0 over the free GPUs, node by node."""
    places = free_gpus(placement)[: slots_needed(placement)]
    return tuple(Slot(index, node, gpu) for index, (node, gpu) in enumerate(places))


def trainer_slots(placement: Any) -> tuple[int, ...]:
    """Slot of each trainer rank."""
    return tuple(range(placement.trainer.gpus)) if has_trainer(placement) else ()


def ports(
    first: int, groups: Sequence[Group], external: Sequence[Any] = ()
) -> tuple[list[EnginePorts], list[int], int]:
    """Ports of each engine; of the router of each model in `routed`; and how many there are, from `first` on without
    gaps."""
    engines, free = [], first
    for group, _ in engine_blocks(groups):
        bootstrap = free + 1 if group.type == "prefill" else None
        dist = free + (2 if bootstrap is not None else 1)
        engines.append(EnginePorts(free, dist, bootstrap))
        free = dist + 1 + (DP_ATTENTION_PORTS + group.dp_attention if group.dp_attention > 1 else 0)
    routers = [free + index for index, _ in enumerate(routed(groups, external))]
    return engines, routers, free + len(routers) - first


def routed(groups: Sequence[Group], external: Sequence[Any] = ()) -> list[str]:
    """Models that need a router: those with several servers that take requests."""
    servers = Counter({group.model: 0 for group in groups})
    for group in groups:
        if takes_requests(group):
            servers[group.model] += group.num_engines
    servers.update(engine.model for engine in external)
    return [name for name, count in servers.items() if count > 1]


def takes_requests(group: Group) -> bool:
    """Whether requests reach the group's engines through a router, rather than from other engines."""
    return group.has_engines and group.type != "encoder"


def data_parallel(placement: Any) -> int:
    """Replicas of the trainer; none without one."""
    if not has_trainer(placement):
        return 0
    return placement.trainer.gpus // (placement.trainer.tp * placement.trainer.pp * placement.trainer.cp)


def divisors(number: int) -> list[int]:
    """Positive divisors, smallest first."""
    return [d for d in range(1, number + 1) if number % d == 0]


def one_of(numbers: list[int]) -> str:
    """`1, 2 or 4`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
