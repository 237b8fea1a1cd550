"""Which groups are learned from, decided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OverlongPlan:
    """What happens to samples cut at the response limit."""

    handling: str = "none"  # none | mask | penalize | drop
    max_tokens: int = 0  # of a response
    buffer_tokens: int = 0
    penalty: float = 0.0


@dataclass(frozen=True)
class SamplingPlan:
    """From the generated groups of one step of the loop to those that are learned from."""

    filter: str = "none"  # none | drop_zero_variance | package.module:name
    sample_filter: str | None = None
    drops: bool = False  # whether a group may be left out
    over_sampling: float = 1.0
    max_refills: int = 0
    surplus_staleness: int = 0  # how many versions old a group may be that was kept and not needed; 0: it is dropped
    overlong: OverlongPlan = OverlongPlan()
