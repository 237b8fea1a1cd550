"""How much memory each phase of a step took, beside what the plan had foretold.

After a phase every rank says what its GPU holds. What the phase needed is what is used now, with this process's
allocator counted at its peak and not at what it keeps for itself: `used - reserved + peak`. That is the number that the
plan estimates; what the allocator keeps beyond it can be used again. The largest rank is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rlrun.plan.types import MemoryPlan

GIB = 2**30

PLANNED = {
    "generate": ("rollout",),
    "logprobs": ("logprob",),
    "values": ("logprob",),
    "critic": ("train",),
    "train": ("train",),
    "save": ("save",),
    "hf": ("save",),
    "sync": ("sync", "wake-up"),
}
"""Phases of the loop, and which of the plan's they are."""


class Measured(Protocol):
    def memory(self) -> Sequence[Mapping[str, float]]: ...


class Gauge:
    """`found` has the metrics of the step so far."""

    def __init__(self, trainer: Measured):
        self._trainer = trainer
        self.found: dict[str, float] = {}

    def read(self, phase: str) -> None:
        """Call at the end of a phase."""
        ranks = self._trainer.memory()
        if any("gpu_used" in rank for rank in ranks):
            self._keep(f"memory/{phase}_gib", max(needed(rank) for rank in ranks))
            self._keep(f"memory/{phase}_used_gib", max(rank["gpu_used"] for rank in ranks))
        self._keep("memory/host_used_gib", max(rank["host_used"] for rank in ranks))
        self._keep("memory/host_parked_gib", max(rank["host_parked"] for rank in ranks))

    def _keep(self, name: str, num_bytes: float) -> None:
        self.found[name] = max(self.found.get(name, 0.0), num_bytes / GIB)


def needed(rank: Mapping[str, float]) -> float:
    """Bytes of the GPU that the phase needed, other processes' included."""
    return rank["gpu_used"] - rank["gpu_reserved"] + rank["gpu_peak"]


def against(plan: MemoryPlan | None, rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """GiB a phase of the plan: `planned`, and `measured`, the largest of all steps; phases that were measured alone."""
    if plan is None:
        return {}
    found: dict[str, dict[str, float]] = {}
    for phase in plan.phases:
        names = [f"memory/{own}_gib" for own, theirs in PLANNED.items() if phase.phase in theirs]
        values = [row[name] for row in rows for name in names if name in row]
        if values:
            found[phase.phase] = {"planned": round(phase.total_bytes / GIB, 2), "measured": round(max(values), 2)}
    return found
