"""What this version can plan and not yet run, in one place: `rlrun plan` says so, and a run is refused before anything
starts. A limit goes away together with its entry here."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.families import RUNNABLE
from rlrun.plan.types import RunPlan


@dataclass(frozen=True)
class Limit:
    """`code` is documented like every other; `what` completes "not yet: ..."; `hint` is a change that runs."""

    code: str
    what: str
    hint: str


def limits(plan: RunPlan) -> list[Limit]:
    """Everything in the plan that cannot be run; empty when it can."""
    found = []
    family = plan.model.spec.family
    if family not in RUNNABLE:
        what = f"family {family} can be planned, and not yet trained: this version runs {', '.join(RUNNABLE)}"
        hint = "use `rlrun plan`, or choose a Qwen3 dense model, e.g. model=qwen3_4b"
        found.append(Limit("family-not-runnable", what, hint))
    if plan.max_staleness > 0:
        what = f"async_mode {plan.async_mode.name} can be planned, and this version's loop runs synchronously"
        found.append(Limit("async-not-runnable", what, "choose async_mode=sync"))
    return found
