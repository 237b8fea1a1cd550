"""One Ray bundle for each slot of the plan, and which GPU is behind it.

Ray is asked for as many one-GPU bundles as the plan has slots; where they came to lie is probed, sorted by node and GPU
as the plan numbers slots, and compared with the plan before anything starts on them. The wait is bounded, and says what
each node would have had to give.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.errors import RunFailed
from rlrun.plan.types import RunPlan
from rlrun.runtime.bundles import in_slot_order, misplaced

HINT = "change placement.* to what the cluster has, or free those GPUs"


@dataclass(frozen=True)
class Granted:
    """What a node has, and what of it is free."""

    address: str
    gpus: int
    free: int


class Slots:
    """Where each slot of the plan is. On cpu slots are processes of this machine, and nothing is reserved."""

    def __init__(self, group: Any = None, places: Sequence[tuple[int, str]] = ()):
        self._group = group
        self._places = tuple(places)  # bundle and GPU id, by slot

    @property
    def gpus(self) -> list[str]:
        """GPU ids behind all slots; empty on cpu."""
        return [gpu for _, gpu in self._places]

    def options(self, slot: int, share: float) -> dict[str, Any]:
        """Ray options that put an actor on a slot, with a share of its GPU."""
        if self._group is None:
            return {"num_cpus": 0}
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._group, self._places[slot][0])
        return {"num_cpus": 0, "num_gpus": share, "scheduling_strategy": strategy}

    def free(self) -> None:
        """Gives everything back; in a cluster that is ours it goes with Ray."""
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self._group)
            self._group = None


def reserve(plan: RunPlan) -> Slots:
    """Raises RunFailed when the cluster has too few GPUs, does not grant them in `timeouts.start_s`, or grants others
    than the plan's."""
    if plan.device != "cuda":
        return Slots()
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    why = lacking(plan, nodes(), total=True)
    if why is not None:
        raise RunFailed("placement", why, HINT)
    need = len(plan.slots)
    group = placement_group([{"GPU": 1, "CPU": 1}] * need, strategy="PACK")
    ready, _ = ray.wait([group.ready()], timeout=plan.timeouts.start_s)
    if not ready:
        found = nodes()
        remove_placement_group(group)
        why = lacking(plan, found, total=False) or f"its bundles need {need} CPUs as well: {_free_cpus()} are free"
        raise RunFailed("placement", f"not granted in {plan.timeouts.start_s:g} s: {why}", HINT)
    places = _probe(group, need)
    order = in_slot_order(places)
    why = misplaced(plan, [places[b] for b in order], ids_are_physical="RAY_ADDRESS" in os.environ)
    if why is not None:
        raise RunFailed("placement", why, HINT)
    return Slots(group, [(bundle, str(places[bundle][1])) for bundle in order])


def lacking(plan: RunPlan, found: Sequence[Granted], total: bool) -> str | None:
    """What the plan needs against what each node has (`total`) or has free; None when it is enough. The plan's largest
    need is met by the largest node, and so on down."""
    needs = sorted(Counter(slot.node for slot in plan.slots).values(), reverse=True)
    have = sorted((node.gpus if total else node.free for node in found), reverse=True)
    if len(have) >= len(needs) and all(h >= n for h, n in zip(have, needs, strict=False)):
        return None
    wants = f"{needs[0]} GPUs on one node" if len(needs) == 1 else f"{_counted(needs)} on {len(needs)} nodes"
    listed = ", ".join(f"{n.address} {n.gpus} GPUs" + ("" if total else f" ({n.free} free)") for n in found)
    return f"the plan needs {wants}; Ray has {listed or 'no node with GPUs'}"


def _counted(needs: Sequence[int]) -> str:
    return f"{needs[0]} GPUs each" if len(set(needs)) == 1 else " + ".join(map(str, needs)) + " GPUs"


def nodes() -> list[Granted]:
    """The living nodes of the cluster that have GPUs."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    found = []
    for node in ray.nodes():
        gpus = int(node["Resources"].get("GPU", 0))
        if node["Alive"] and gpus:
            left = int(free.get(node["NodeID"], {}).get("GPU", 0))
            found.append(Granted(node["NodeManagerAddress"], gpus, left))
    return found


def _free_cpus() -> int:
    import ray

    return int(ray.available_resources().get("CPU", 0))


def _probe(group: Any, need: int) -> list[tuple[str, int]]:
    """Address and GPU of every bundle, by number of the bundle."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    @ray.remote(num_cpus=0, num_gpus=0.01)
    def probe() -> tuple[str, int]:
        context = ray.get_runtime_context()
        return ray.util.get_node_ip_address(), int(context.get_accelerator_ids()["GPU"][0])

    return ray.get(
        [
            probe.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)).remote()
            for bundle in range(need)
        ]
    )
