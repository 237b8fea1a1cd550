"""`rlrun -m`: every point is planned first, then they run one after the other, each as a child MLflow run.

A point that fails does not stop the others; the sweep's exit code says that one did. Ctrl-C ends the sweep.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence

from rlrun.errors import EXIT_OK, EXIT_RUN_FAILED, Problem, RlrunError
from rlrun.plan.types import RunPlan
from rlrun.runtime import launch
from rlrun.runtime.progress import shown
from rlrun.runtime.summary import Outcome, learned, mlflow_command, print_outcome, summarise
from rlrun.tracking.base import RunStatus


def varying(points: Sequence[Sequence[str]]) -> list[str]:
    """Each point's name: the overrides that differ between points, e.g. `algo.lr=1e-06`."""
    shared = set(points[0]).intersection(*map(set, points[1:])) if points else set()
    return [" ".join(o for o in point if o not in shared) or f"point {i}" for i, point in enumerate(points)]


def plan_all(points: Sequence[list[str]], config_dir: str | None) -> list[RunPlan]:
    """The plans of all points; problems of all points together, each once, with the point in which it is seen."""
    from rlrun.plan.build import load_plan

    plans: list[RunPlan] = []
    problems: list[Problem] = []
    for name, point in zip(varying(points), points, strict=True):
        try:
            plans.append(load_plan(point, config_dir))
        except RlrunError as e:
            known = {(p.code, p.summary) for p in problems}
            fresh = [p for p in e.problems if (p.code, p.summary) not in known]
            problems += [Problem(p.code, f"{p.summary} (in {name})", p.where, p.hint) for p in fresh]
    if problems:
        raise RlrunError(problems)
    return plans


def sweep(points: Sequence[list[str]], config_dir: str | None = None) -> int:
    """Runs all points; returns an exit code. Raises RlrunError before anything starts when a point is wrong."""
    from rlrun.tracking.mlflow import MlflowParent

    plans, names = plan_all(points, config_dir), varying(points)
    for plan in plans:
        launch.check_machine(plan)
    first = plans[0]
    parent = None
    if first.tracking is not None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        parent = MlflowParent(
            first.tracking.uri, first.tracking.experiment, f"sweep {stamp}", {"rlrun.points": str(len(points))}
        )
    outcomes: list[Outcome] = []
    status: RunStatus = "FAILED"
    try:
        for index, (plan, name) in enumerate(zip(plans, names, strict=True)):
            print(f"\npoint {index + 1} of {len(plans)}: {name}", file=sys.stderr)
            start = launch.Start(launch.new_run_dir(plan))
            outcome = launch.execute(plan, start, parent.run_id if parent else None, name)
            outcomes.append(outcome)
            if outcome.error is not None:
                print_outcome(outcome)
            if outcome.status == "killed":
                status = "KILLED"
                break
        else:
            status = "FINISHED" if all(o.exit_code == EXIT_OK for o in outcomes) else "FAILED"
    finally:
        if parent is not None:
            parent.close(status)
    print_table(names, outcomes)
    if status == "KILLED":
        return outcomes[-1].exit_code
    return EXIT_OK if status == "FINISHED" else EXIT_RUN_FAILED


def print_table(names: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    """One line a point, on stdout; points that were never started say so."""
    width = max(len(name) for name in names)
    finished = sum(o.exit_code == EXIT_OK for o in outcomes)
    lines = [f"\nSweep: {finished} of {len(names)} points finished"]
    for name, outcome in itertools.zip_longest(names, outcomes):
        if outcome is None:
            lines.append(f"  {name:<{width}}  not started")
            continue
        summary = summarise(outcome)
        trend = " ".join(learned(summary) or ("no step done",))
        lines.append(f"  {name:<{width}}  {outcome.status:<9} {trend}  {shown(outcome.run_dir)}")
    tracking = outcomes[0].plan.tracking if outcomes else None
    if tracking is not None:
        lines += ["Next", mlflow_command(tracking.uri)]
    print("\n".join(lines))
