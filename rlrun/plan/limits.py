"""What this version can plan and not yet run, in one place: `rlrun plan` says so, and a run is refused before anything
starts. A limit goes away together with its entry here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlrun.plan.families import RANDOM, RUNNABLE
from rlrun.plan.types import RunPlan
from rlrun.plan.weight_files import only_described

SGLANG = "0.5.15.post1"
"""The release that the engines are pinned to."""

STALE_ROUTER = ("glm4_moe",)
"""Families whose router SGLang copies once."""


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
    if family in STALE_ROUTER:
        what = f"SGLang {SGLANG} keeps an fp32 copy of the router of {family} that weight syncs do not refresh"
        hint = "use `rlrun plan`; the copy has to be refreshed in place after each sync (rlrun explain stale-router)"
        found.append(Limit("stale-router", what, hint))
    path = plan.model.path
    if path is not None and only_described(Path(path)):
        hint = "download weights and tokenizer into that folder, or set model.path to the Hub id"
        found.append(Limit("weights-not-here", f"{path} has a config.json and no weights", hint))
    return found
