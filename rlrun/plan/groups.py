"""Server groups -> sizes, slots and engines. Arithmetic only; `rules/engines.py` and `rules/server_groups.py` have
refused what cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

POLICY = "policy"
"""The model that is trained, and the only one whose engines get new weights."""

ROLLOUT = "placement.rollout"
GROUPS = f"{ROLLOUT}.server_groups"


@dataclass(frozen=True)
class Group:
    """A server group with every size decided, and the keys that decided them."""

    key: str  # where it is written: one entry of server_groups, or placement.rollout
    name: str
    type: str
    model: str
    gpus: int
    size: int  # GPUs of an engine
    pp: int
    ep: int
    dp_attention: int
    first: int  # its first slot
    sglang: Mapping[str, Any]  # overrides
    size_key: str
    pp_key: str
    ep_key: str
    dp_key: str

    @property
    def gpus_key(self) -> str:
        return f"{self.key}.gpus"

    @property
    def has_engines(self) -> bool:
        return self.type != "placeholder"

    @property
    def num_engines(self) -> int:
        return self.gpus // self.size if self.has_engines else 0

    @property
    def tp(self) -> int:
        return max(1, self.size // self.pp)

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.gpus)

    def engines(self) -> list[tuple[int, ...]]:
        """Slots of each engine."""
        starts = (self.first + i * self.size for i in range(self.num_engines))
        return [tuple(range(start, start + self.size)) for start in starts]


def first_slot(placement: Any) -> int:
    """Where the engines begin: after the trainer when disaggregated."""
    return placement.trainer.gpus if placement.mode == "disaggregated" else 0


def has_trainer(placement: Any) -> bool:
    return placement.mode != "rollout_only"


def has_engines(placement: Any) -> bool:
    return placement.mode != "train_only"


def external_policy(placement: Any) -> bool:
    """Whether servers that run already generate, instead of engines of ours."""
    return any(engine.model == POLICY for engine in placement.rollout.external)


def rollout_gpus(placement: Any) -> int:
    """Slots of the rollout side, those of placeholders too."""
    if not has_engines(placement):
        return 0
    written = placement.rollout.server_groups
    if written:
        return sum(group.gpus for group in written)
    return 0 if external_policy(placement) else placement.rollout.gpus


def server_groups(placement: Any, models: Mapping[str, Any]) -> tuple[Group, ...]:
    """The groups in the order of their slots; without any written, one of regular engines."""
    if not has_engines(placement):
        return ()
    r, first = placement.rollout, first_slot(placement)
    if not r.server_groups:
        if external_policy(placement):
            return ()
        keys = (f"{ROLLOUT}.gpus_per_engine", f"{ROLLOUT}.pp", f"{ROLLOUT}.ep", f"{ROLLOUT}.dp_attention")
        sizes = (r.gpus, r.gpus_per_engine, r.pp, r.ep, r.dp_attention)
        return (Group(ROLLOUT, "policy-regular", "regular", POLICY, *sizes, first, {}, *keys),)
    groups, names = [], _names(r.server_groups)
    for index, written in enumerate(r.server_groups):
        key, is_policy = f"{GROUPS}.{index}", written.model == POLICY
        size, size_key = _size(key, written, models, r)
        own = {}
        for name in ("pp", "ep", "dp_attention"):
            value, general = getattr(written, name), getattr(r, name) if is_policy else 1
            own[name] = (general, f"{ROLLOUT}.{name}") if value is None else (value, f"{key}.{name}")
        groups.append(
            Group(
                key=key,
                name=names[index],
                type=written.type,
                model=written.model,
                gpus=written.gpus,
                size=size,
                pp=own["pp"][0],
                ep=own["ep"][0],
                dp_attention=own["dp_attention"][0],
                first=first,
                sglang=written.sglang,
                size_key=size_key,
                pp_key=own["pp"][1],
                ep_key=own["ep"][1],
                dp_key=own["dp_attention"][1],
            )
        )
        first += written.gpus
    return tuple(groups)


def _names(written: Sequence[Any]) -> list[str]:
    """The name of each group: its own, or <model>-<type> with a number when that is taken."""
    taken = {group.name for group in written if group.name is not None}
    names = []
    for group in written:
        name = group.name
        if name is None:
            base = "placeholder" if group.type == "placeholder" else f"{group.model}-{group.type}"
            name = next(n for i in range(1, len(written) + 2) if (n := base if i == 1 else f"{base}-{i}") not in taken)
            taken.add(name)
        names.append(name)
    return names


def _size(key: str, written: Any, models: Mapping[str, Any], rollout: Any) -> tuple[int, str]:
    """GPUs of one engine and the key that says so: of the group, else of its model, else of all."""
    if written.gpus_per_engine is not None:
        return written.gpus_per_engine, f"{key}.gpus_per_engine"
    model = models.get(written.model)
    if model is not None and model.gpus_per_engine is not None:
        return model.gpus_per_engine, f"rollout.models.{written.model}.gpus_per_engine"
    return rollout.gpus_per_engine, f"{ROLLOUT}.gpus_per_engine"


def outside(group: str, kind: str, offset: int, size: int, gpus_per_node: int, engines: int, slots: int) -> str | None:
    """Why the engines of a group do not lie within `slots`, the GPUs there are; None when they do. Asked of the plan,
    and again of the bundles that a cluster has really granted."""
    on_a_node = min(size, gpus_per_node)
    parts = engines * (-(-size // on_a_node)) if on_a_node > 0 else 0
    required = offset + parts * on_a_node
    if engines == 0 or (offset >= 0 and on_a_node > 0 and required <= slots):
        return None
    return (
        f"server group {group} ({kind}) begins at slot {offset} with {engines} engines of {size} GPUs "
        f"({on_a_node} on a node), so it requires {required} slots, and {slots} are available"
    )


def engine_blocks(groups: Sequence[Group]) -> list[tuple[Group, tuple[int, ...]]]:
    """Every engine with its group, in the order of their numbers."""
    return [(group, slots) for group in groups for slots in group.engines()]
