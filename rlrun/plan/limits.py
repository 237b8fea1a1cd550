"""What this version can plan and not yet run, in one place: `rlrun plan` says so, and a run is refused before anything
starts. A limit goes away together with its entry here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlrun.plan.groups import POLICY
from rlrun.plan.types import RunPlan
from rlrun.plan.weight_files import only_described
from rlrun.plan.weight_names import is_fp8


@dataclass(frozen=True)
class Limit:
    """`code` is documented like every other; `what` completes "not yet: ..."; `hint` is a change that runs."""

    code: str
    what: str
    hint: str


def limits(plan: RunPlan) -> list[Limit]:
    """Everything in the plan that cannot be run; empty when it can."""
    found = []
    path = plan.model.path
    if path is not None and only_described(Path(path)):
        hint = "download weights and tokenizer into that folder, or set model.path to the Hub id"
        found.append(Limit("weights-not-here", f"{path} has a config.json and no weights", hint))
    for rule in RULES:
        found += rule(plan)
    return found


def _fp8(plan: RunPlan) -> list[Limit]:
    path = plan.model.path
    if path is None or not plan.engines or not is_fp8(Path(path)):
        return []
    what = f"engines that load {path} in FP8, while the weights they are sent are {plan.model.dtype}"
    hint = "dequantise it once with `rlrun convert hf-to-hf SOURCE TARGET` and set model.path to TARGET"
    return [Limit("quantised-not-runnable", what, hint)]


def _mode(plan: RunPlan) -> list[Limit]:
    if plan.placement_mode not in ("train_only", "rollout_only") or plan.algo.supervised:
        return []
    what, hint = f"a {plan.placement_mode} placement", "use `rlrun plan`, or set placement.mode to colocated"
    if plan.placement_mode == "train_only":
        what += f" with loss {plan.algo.loss.kind}, which learns from samples that nobody here generates"
        hint += ", or algo.loss to sft with data.train.response_key"
    return [Limit("mode-not-runnable", what, hint)]


def _colocated_nodes(plan: RunPlan) -> list[Limit]:
    if plan.sync is None or plan.sync.backend != "cuda_ipc":
        return []
    first = plan.slots[plan.train.slots[0]].node
    away = [e.index for e in plan.engines if e.model == POLICY and set(e.nodes) != {first}]
    if not away:
        return []
    which = f"engine {away[0]}" if len(away) == 1 else f"engines {away[0]} to {away[-1]}"
    what = f"{which} on other nodes than trainer rank 0, which hands out the weights by CUDA IPC"
    hint = "set weight_sync.transport to disk, in a folder that all nodes share, or use `rlrun plan`"
    return [Limit("colocated-nodes-not-runnable", what, hint)]


def _server_groups(plan: RunPlan) -> list[Limit]:
    kinds = {g.type: g.name for g in plan.deployment.groups if g.type not in ("regular", "placeholder")}
    if not kinds:
        return []
    what = f"server groups of type {' and '.join(kinds)} ({', '.join(kinds.values())})"
    hint = "use `rlrun plan`, or make the policy's groups regular"
    return [Limit("server-groups-not-runnable", what, hint)]


def _served_weights(plan: RunPlan) -> list[Limit]:
    found = []
    for model in plan.deployment.models:
        if model.engines and only_described(Path(model.path)):
            key = f"rollout.models.{model.name}.path"
            hint = f"download weights and tokenizer into that folder, or set {key} to the Hub id"
            found.append(Limit("weights-not-here", f"{model.path} has a config.json and no weights", hint))
    return found


def _engine_nodes(plan: RunPlan) -> list[Limit]:
    wide = next((engine for engine in plan.engines if len(engine.nodes) > 1), None)
    if wide is None:
        return []
    what = f"an engine over {len(wide.nodes)} nodes (engine {wide.index}, nodes {wide.nodes[0]} to {wide.nodes[-1]})"
    hint = f"use `rlrun plan`, or set placement.rollout.gpus_per_engine to {plan.gpus_per_node} or less"
    return [Limit("engine-nodes-not-runnable", what, hint)]


def _engine_parallel(plan: RunPlan) -> list[Limit]:
    for engine in plan.engines:
        sizes = {"pp": engine.pp, "ep": engine.ep, "dp_attention": engine.dp_attention}
        used = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        if used:
            what = f"engines with {', '.join(used)} (engine {engine.index})"
            hint = "use `rlrun plan`, or set placement.rollout.pp, ep and dp_attention to 1"
            return [Limit("engine-parallel-not-runnable", what, hint)]
    return []


def _parallel(plan: RunPlan) -> list[Limit]:
    found, train, experts = [], plan.train, plan.model.spec.moe is not None
    if experts and train.ep == 1 and train.tp != train.etp:
        what = (
            f"experts that {train.tp} tensor-parallel ranks hold whole each: Megatron sums their gradients with ep only"
        )
        hint = "use `rlrun plan`, or set placement.trainer.tp to 1"
        found.append(Limit("ep-not-runnable", what, hint))
    return found


def _offload(plan: RunPlan) -> list[Limit]:
    found = []
    if plan.train.optimizer_offload:
        what = "trainer.optimizer_offload, an optimizer that lives and steps on the host"
        hint = "use `rlrun plan`, or set trainer.optimizer_offload to false and trainer.offload to true"
        found.append(Limit("optimizer-offload-not-runnable", what, hint))
    if plan.train.optimizer_dtype != "float32":
        what = f"moments in {plan.train.optimizer_dtype} need TransformerEngine's optimizer, which is not used yet"
        hint = "use `rlrun plan`, or set trainer.optimizer_dtype to float32"
        found.append(Limit("optimizer-dtype-not-runnable", what, hint))
    return found


def _async(plan: RunPlan) -> list[Limit]:
    if plan.max_staleness == 0:
        return []
    what = f"async_mode {plan.async_mode.name} can be planned, and this version's loop runs synchronously"
    return [Limit("async-not-runnable", what, "choose async_mode=sync")]


RULES = (
    _async,
    _parallel,
    _offload,
    _mode,
    _colocated_nodes,
    _server_groups,
    _served_weights,
    _engine_nodes,
    _engine_parallel,
    _fp8,
)
