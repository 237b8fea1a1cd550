"""`rlrun -m`: every point is planned first, then they run one after the other, each as a child MLflow run.

A point that fails does not stop the others; the sweep's exit code says that one did. Ctrl-C ends the sweep.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rlrun.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, Problem, RlrunError
from rlrun.plan.types import RunPlan
from rlrun.runtime import launch
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
    codes: list[int] = []
    status: RunStatus = "FAILED"
    try:
        for index, (plan, name) in enumerate(zip(plans, names, strict=True)):
            print(f"\npoint {index + 1} of {len(plans)}: {name}", file=sys.stderr)
            codes.append(launch.run(plan, parent_run_id=parent.run_id if parent else None, label=name))
            if codes[-1] in (EXIT_INTERRUPTED, launch.EXIT_TERMINATED):
                status = "KILLED"
                return codes[-1]
        status = "FINISHED" if all(code == EXIT_OK for code in codes) else "FAILED"
    finally:
        if parent is not None:
            parent.close(status)
    failed = [name for name, code in zip(names, codes, strict=True) if code != EXIT_OK]
    print(f"\nSweep: {len(codes) - len(failed)} of {len(codes)} points finished.")
    for name in failed:
        print(f"  failed: {name}")
    return EXIT_RUN_FAILED if failed else EXIT_OK
