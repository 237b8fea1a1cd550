"""What `rlrun resume` may do: go on with the very same experiment. Layout, folders and tracking may change; what is
learned may not, except that a run with a constant learning rate may be given more steps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from rlrun.config.keys import find_key
from rlrun.errors import Problem, RlrunError, Where
from rlrun.plan.build import plan_from_json, replan
from rlrun.plan.types import RunPlan
from rlrun.runtime.checkpoint import STATE, CheckpointStore, Damage, RunState


def resume_plan(run_dir: str, overrides: list[str]) -> tuple[RunPlan, RunState, str]:
    """The plan to go on with, the saved state and its checkpoint folder. Raises RlrunError (exit 2)."""
    path = os.path.join(run_dir, "plan.json")
    if not os.path.exists(path):
        raise RlrunError(
            Problem("no-run-there", f"{run_dir} holds no plan.json", hint="give the folder of a run: ls runs/*")
        )
    old = _read_plan(path)
    checkpoint, state = _newest(run_dir, old)
    # stop_after belongs to the command that gave it, not to the run.
    carried = [] if any(o.split("=")[0] == "stop_after" for o in overrides) else ["stop_after=null"]
    plan = replan(old, [*carried, *overrides])
    _same_experiment(old, plan)
    if state.step >= plan.num_steps:
        raise RlrunError(
            Problem(
                "run-finished",
                f"{run_dir} is finished: step {state.step} of {plan.num_steps} is saved",
                hint=f"to train on, give it more steps: rlrun resume {run_dir} num_steps={2 * plan.num_steps}",
            )
        )
    if plan.stop_after is not None and plan.stop_after <= state.step:
        raise RlrunError(
            Problem(
                "stop-already-passed",
                f"stop_after={plan.stop_after}, but step {state.step} is saved already",
                hint=f"set stop_after above {state.step}",
            )
        )
    return plan, state, checkpoint


def _newest(run_dir: str, plan: RunPlan) -> tuple[str, RunState]:
    """Folder and state of the newest checkpoint, which has to be as it was saved.

    A damaged one is not passed over in silence: a checkpoint that was whole once and is not any more means a disk or a
    hand that somebody should know of, and the steps that going back costs are for that person to give up.
    """
    store = CheckpointStore.of(run_dir, plan.checkpoint)
    steps = store.steps()
    if not steps:
        raise RlrunError(
            Problem(
                "no-checkpoint",
                f"{run_dir} stopped before its first checkpoint",
                hint="start it again; checkpoint.interval=N saves every N steps",
            )
        )
    damage = store.damage(steps[-1])
    if not damage:
        try:
            return store.path(steps[-1]), store.state(steps[-1])
        except (ValueError, TypeError):  # cut or edited, in a checkpoint without a list of sizes
            damage = [Damage(os.path.join(store.path(steps[-1]), STATE), None, 0)]
    raise RlrunError(_damaged(store, steps, damage))


def _damaged(store: CheckpointStore, steps: list[int], damage: list[Damage]) -> Problem:
    path = store.path(steps[-1])
    where = tuple(Where(d.file, d.words) for d in damage)
    good = [step for step in steps[:-1] if not store.damage(step)]
    hint = "no earlier checkpoint is whole: start a new run"
    if good:
        away = [step for step in steps if step > good[-1]]
        moves = "; ".join(f"mv {shlex.quote(store.path(s))} {shlex.quote(store.path(s) + '.damaged')}" for s in away)
        hint = f"to go on from step {good[-1]} instead, put it away and resume again: {moves}"
    return Problem("checkpoint-damaged", f"the newest checkpoint, {path}, is not as it was saved", where, hint)


def _read_plan(path: str) -> RunPlan:
    try:
        with open(path, encoding="utf-8") as f:
            return plan_from_json(f.read())
    except Exception as e:  # cut short, edited by hand, or written by a version with other fields
        raise RlrunError(
            Problem(
                "plan-unreadable",
                f"{path} cannot be read as a plan of this version ({type(e).__name__}: {e})",
                hint="resume with the version of rlrun that began the run, or start a new run",
            )
        ) from e


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found[f"{prefix}{key}"] = (a, b)
    return found


def _same_experiment(old: RunPlan, new: RunPlan) -> None:
    if old.config_hash == new.config_hash:
        return
    changed = {
        key: values
        for key, values in differences(old.resolved_config, new.resolved_config).items()
        if (known := find_key(key)) is None or known.semantic
    }
    optimizers = [new.algo.optimizer, *([new.critic.optimizer] if new.critic is not None else [])]
    decaying = [o.schedule for o in optimizers if o.schedule != "constant"]
    if set(changed) == {"num_steps"} and not decaying:
        return
    summary = "a resumed run would learn something else than the run it continues"
    if not changed:
        summary = f"the data or model behind the run changed: config {old.config_hash} is now {new.config_hash}"
    elif "num_steps" in changed and decaying:
        summary += f" (a {decaying[0]} learning rate depends on num_steps)"
    where = tuple(Where("plan.json", f"{key}: {a}  ->  {b}") for key, (a, b) in changed.items())
    raise RlrunError(Problem("resume-changes-experiment", summary, where, hint="start a new run for a new experiment"))
