"""What this version can plan and not yet run, in one place: `rlrun plan` says so, and a run is refused before anything
starts. A limit goes away together with its entry here."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.families import RUNNABLE
from rlrun.plan.types import RunPlan, TrainPlan


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
    found += _parallel(plan.train, plan.model.spec.moe is not None)
    found += _offload(plan)
    if plan.sync.backend == "cuda_ipc":
        node = {slot.index: slot.node for slot in plan.slots}
        first = node[plan.train.slots[0]]
        away = [e.index for e in plan.engines if any(node[slot] != first for slot in e.slots)]
        if away:
            what = (
                f"engine{'s' * (len(away) > 1)} {away[0]}{f' to {away[-1]}' * (len(away) > 1)} "
                f"on other nodes than trainer rank 0, which hands out the weights by CUDA IPC"
            )
            hint = "use `rlrun plan`, or set placement.mode to disaggregated and weight_sync.transport to distributed"
            found.append(Limit("colocated-nodes-not-runnable", what, hint))
    return found


def _parallel(train: TrainPlan, experts: bool) -> list[Limit]:
    found = []
    if train.cp > 1:
        what = f"context parallelism (cp {train.cp}) can be planned, and not yet run"
        found.append(Limit("cp-not-runnable", what, "use `rlrun plan`, or set placement.trainer.cp to 1"))
    if train.ep > 1 or train.etp > 1:
        what = f"expert parallelism (ep {train.ep}, etp {train.etp}) can be planned, and not yet run"
        hint = "use `rlrun plan`, or set placement.trainer.ep and placement.trainer.etp to 1"
        found.append(Limit("ep-not-runnable", what, hint))
    elif experts and train.tp != train.etp:
        what = f"experts that {train.tp} tensor-parallel ranks hold whole each: without ep Megatron does not sum their gradients"
        hint = "use `rlrun plan`, or set placement.trainer.tp to 1"
        found.append(Limit("ep-not-runnable", what, hint))
    return found


def _offload(plan: RunPlan) -> list[Limit]:
    found = []
    keys = {
        "trainer.offload": plan.train.offload,
        "trainer.optimizer_offload": plan.train.optimizer_offload,
        "rollout.offload": plan.rollout.offload,
    }
    on = [key for key, value in keys.items() if value]
    if on:
        what = f"{' and '.join(on)} can be planned, and not yet carried out"
        found.append(Limit("offload-not-runnable", what, f"use `rlrun plan`, or set {' and '.join(on)} to false"))
    if plan.train.optimizer_dtype != "float32":
        what = f"moments in {plan.train.optimizer_dtype} need TransformerEngine's optimizer, which is not used yet"
        hint = "use `rlrun plan`, or set trainer.optimizer_dtype to float32"
        found.append(Limit("optimizer-dtype-not-runnable", what, hint))
    return found
