"""Nodes against what the run asks of them: GPUs, CPU cores, and what other programs use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.groups import has_engines, has_trainer, outside
from rlrun.plan.placement import free_gpus, routed, slots, slots_needed, taken, trainer_slots

TRAINER, ROLLOUT = "placement.trainer", "placement.rollout"
RESERVED = "placement.reserved"


def enough_gpus(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    have, need = len(free_gpus(p)), slots_needed(p)
    if need <= have:
        return
    how = {
        "colocated": "the larger of trainer and rollout",
        "disaggregated": "trainer plus rollout",
        "train_only": "the trainer",
        "rollout_only": "the engines",
    }[p.mode]
    lost = p.num_nodes * p.gpus_per_node - have
    summary = f"the run needs {need} GPUs ({how}) and the nodes have {have}"
    if lost:
        summary += f" beside {lost} that are reserved"
    first = next((g for g in c.groups if g.first + g.gpus > have), None)
    if first is not None and p.rollout.server_groups:
        why = outside(first.name, first.type, first.first, first.size, p.gpus_per_node, first.num_engines, have)
        summary += f"; {why}" if why else ""
    if p.device == "cpu":  # a slot is only a process
        hint = f"set placement.gpus_per_node to {-(-need // p.num_nodes)}"
    else:
        hint = f"set placement.num_nodes to {-(-(need + lost) // p.gpus_per_node)}, or ask for fewer GPUs"
    keys = ["placement.num_nodes", "placement.gpus_per_node"]
    keys[:0] = [f"{TRAINER}.gpus"] * has_trainer(p) + [f"{ROLLOUT}.gpus"] * has_engines(p)
    yield c.problem("too-many-gpus", summary, *keys, *([RESERVED] * (lost > 0)), hint=hint)


def idle_nodes(c: Context) -> Iterator[Problem]:
    """Nodes that the run would hold and never use."""
    p, key = c.config.placement, "placement.num_nodes"
    if p.num_nodes == 1:
        return
    need = slots_needed(p)
    busy = {slot.node for slot in slots(p)} | {entry.node for entry in p.reserved}
    used = max((node for node in busy if node < p.num_nodes), default=0) + 1
    if p.device == "cpu":
        summary = "slots on cpu are processes of one machine"
        hint = f"set {key} to 1, and placement.gpus_per_node to {need}"
        yield c.problem("inactive-key", summary, key, "placement.device", hint=hint)
    elif used < p.num_nodes:
        summary = f"the run's {need} GPUs are on {used} of {p.num_nodes} nodes, and the rest would do nothing"
        keys = [f"{TRAINER}.gpus"] * has_trainer(p) + [f"{ROLLOUT}.gpus"] * has_engines(p)
        hint = f"set {key} to {used}, or ask for more GPUs"
        yield c.problem("inactive-key", summary, key, "placement.gpus_per_node", *keys, hint=hint)


def reserved_exist(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    for index, entry in enumerate(p.reserved):
        key = f"{RESERVED}.{index}"
        if entry.node >= p.num_nodes:
            summary = f"{entry.what} is on node {entry.node}, and the nodes are 0 to {p.num_nodes - 1}"
            hint = f"set {key}.node to {p.num_nodes - 1} or less"
            yield c.problem("reserved-outside", summary, f"{key}.node", "placement.num_nodes", hint=hint)
        beyond = [gpu for gpu in entry.gpus if gpu >= p.gpus_per_node]
        if beyond:
            summary = (
                f"{entry.what} uses GPU {', '.join(map(str, beyond))} of node {entry.node}, whose GPUs are 0 to "
                f"{p.gpus_per_node - 1}"
            )
            inside = [gpu for gpu in entry.gpus if gpu < p.gpus_per_node] or [p.gpus_per_node - 1]
            hint = f"set {key}.gpus to {inside}"
            yield c.problem("reserved-outside", summary, f"{key}.gpus", "placement.gpus_per_node", hint=hint)


def reserved_once(c: Context) -> Iterator[Problem]:
    owner: dict[tuple[int, int], int] = {}
    for index, entry in enumerate(c.config.placement.reserved):
        for gpu in entry.gpus:
            other = owner.setdefault((entry.node, gpu), index)
            repeated = other == index and entry.gpus.count(gpu) > 1
            if other != index or repeated:
                reserved = c.config.placement.reserved
                who = f"{reserved[other].what} and {entry.what}" if other != index else f"{entry.what} twice"
                keys = list(dict.fromkeys((f"{RESERVED}.{other}.gpus", f"{RESERVED}.{index}.gpus")))
                summary = f"GPU {gpu} of node {entry.node} is reserved for {who}"
                hint = f"remove {gpu} from {keys[-1]}"
                yield c.problem("reserved-twice", summary, *keys, hint=hint)
                break


def reserved_everything(c: Context) -> Iterator[Problem]:
    """A node of which nothing is left needs no mention: its GPUs could as well be no part of the run."""
    p = c.config.placement
    gone = Counter(node for node, gpu in taken(p) if gpu < p.gpus_per_node)
    for node, count in gone.items():
        if count == p.gpus_per_node and node == p.num_nodes - 1 and p.num_nodes > 1:
            index = next(i for i, entry in enumerate(p.reserved) if entry.node == node)
            summary = f"all {count} GPUs of node {node} are reserved, so the run has no part in it"
            hint = f"set placement.num_nodes to {p.num_nodes - 1}, and remove {RESERVED}.{index}"
            yield c.problem("inactive-key", summary, f"{RESERVED}.{index}.gpus", "placement.num_nodes", hint=hint)


def enough_cpus(c: Context) -> Iterator[Problem]:
    """One core for each trainer rank, engine (on each of its nodes) and router."""
    p, key = c.config.placement, "placement.cpus_per_node"
    if p.cpus_per_node is None:
        return
    places = slots(p)
    ranks = Counter(places[slot].node for slot in trainer_slots(p) if slot < len(places))
    parts: Counter[int] = Counter()
    for group in c.groups:
        for own in group.engines():
            parts.update({places[slot].node for slot in own if slot < len(places)})
    routers = Counter({0: len(routed(c.groups, p.rollout.external))} if has_engines(p) else {})
    worst = max(range(p.num_nodes), key=lambda node: ranks[node] + parts[node] + routers[node])
    need = ranks[worst] + parts[worst] + routers[worst]
    if need > p.cpus_per_node:
        summary = (
            f"node {worst} has {p.cpus_per_node} CPU cores for {ranks[worst]} trainer ranks, {parts[worst]} engines "
            f"and {routers[worst]} routers, which need one each: {need}"
        )
        hint = f"set {key} to {need} or more on nodes that have them, or use fewer GPUs of each node"
        yield c.problem("too-few-cpus", summary, key, "placement.gpus_per_node", hint=hint)


RULES = (enough_gpus, idle_nodes, reserved_exist, reserved_once, reserved_everything, enough_cpus)
