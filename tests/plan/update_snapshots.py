"""Writes tests/plan/snapshots/<experiment>.txt: the plan of every shipped experiment, as `rlrun plan` prints it.

    python tests/plan/update_snapshots.py

Read the difference before committing it: it is what a user would see change.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlrun.plan.build import load_plan
from rlrun.plan.render import render_plan

ROOT = Path(__file__).parents[2]
SNAPSHOTS = Path(__file__).parent / "snapshots"
EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))


def plan_text(experiment: str) -> str:
    """The text, seen from the root of the repository, below which it shows paths as relative."""
    with contextlib.chdir(ROOT):
        return render_plan(load_plan([f"+experiment={experiment}"])) + "\n"


def main() -> None:
    SNAPSHOTS.mkdir(exist_ok=True)
    for old in SNAPSHOTS.glob("*.txt"):
        if old.stem not in EXPERIMENTS:
            old.unlink()
    for name in EXPERIMENTS:
        (SNAPSHOTS / f"{name}.txt").write_text(plan_text(name), encoding="utf-8")
    print(f"{len(EXPERIMENTS)} snapshots in {SNAPSHOTS}")


if __name__ == "__main__":
    main()
