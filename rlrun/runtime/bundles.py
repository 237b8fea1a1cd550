"""What the cluster has granted against what the plan needs, before anything starts on it."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.plan.groups import outside
from rlrun.plan.types import RunPlan

Place = tuple[str, int]
"""Address of a node and CUDA id of a GPU there."""


def in_slot_order(places: Sequence[Place]) -> list[int]:
    """Bundles sorted as the plan numbers slots: by the numbers of their node's address, then by GPU."""
    return sorted(range(len(places)), key=lambda b: (tuple(int(x) for x in places[b][0].split(".")), places[b][1]))


def misplaced(plan: RunPlan, places: Sequence[Place], ids_are_physical: bool) -> str | None:
    """Why the run cannot start on these GPUs, one for each slot and in their order; None when it can.
    `ids_are_physical` when nothing has hidden reserved GPUs from the cluster."""
    for group in plan.deployment.groups:
        engines = [plan.engines[index] for index in group.engines]
        size = len(engines[0].slots) if engines else 1
        offset, number = group.slots[0], len(engines)
        why = outside(group.name, group.type, offset, size, plan.gpus_per_node, number, len(places))
        if why is not None:
            return why
    if len(places) < len(plan.slots):
        return f"the plan has {len(plan.slots)} slots and {len(places)} GPUs were granted"
    for engine in plan.engines:
        hosts = list(dict.fromkeys(places[slot][0] for slot in engine.slots))
        if len(hosts) != len(engine.nodes):
            return (
                f"engine {engine.index} needs its {len(engine.slots)} GPUs on {len(engine.nodes)} "
                f"node{'s' * (len(engine.nodes) > 1)}, and they were granted on {', '.join(hosts)}"
            )
    return _on_reserved(plan, places) if ids_are_physical else None


def _on_reserved(plan: RunPlan, places: Sequence[Place]) -> str | None:
    hosts = list(dict.fromkeys(host for host, _ in places))
    nodes = sorted({slot.node for slot in plan.slots})
    for entry in plan.deployment.reserved:
        if entry.node not in nodes or nodes.index(entry.node) >= len(hosts):
            continue
        host = hosts[nodes.index(entry.node)]
        hit = sorted(gpu for where, gpu in places if where == host and gpu in entry.gpus)
        if hit:
            return (
                f"GPU {', '.join(map(str, hit))} of {host} was granted, and placement.reserved has it for {entry.what}"
            )
    return None


def visible_without_reserved(plan: RunPlan, visible: str | None) -> str | None:
    """CUDA_VISIBLE_DEVICES with which a Ray of our own on this machine sees no reserved GPU; unchanged without any.
    Numbers in placement.reserved count the GPUs that are visible now."""
    hidden = {gpu for entry in plan.deployment.reserved if entry.node == 0 for gpu in entry.gpus}
    if not hidden:
        return visible
    ids = [part.strip() for part in visible.split(",")] if visible else [str(gpu) for gpu in range(plan.gpus_per_node)]
    return ",".join(name for position, name in enumerate(ids) if position not in hidden)
