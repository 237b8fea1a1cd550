"""What this version can plan and not yet run, in one place: `rlrun plan` says so, and a run is refused before anything
starts. A limit goes away together with its entry here."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.families import RANDOM, RUNNABLE
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
    if plan.model.init == "random" and family not in RANDOM:
        what = f"random weights can be made for {', '.join(RANDOM)} only, not for {family}"
        hint = "set model.init to pretrained with model.path, or choose model=tiny_qwen3"
        found.append(Limit("random-family", what, hint))
    return found
