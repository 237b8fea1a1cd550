"""Time from a command line to its plan: cold, in a process of its own, and warm, in this one.

    python benchmarks/bench_plan.py

Printed against what the plan is made from: keys of the configuration, rows of the data, GPUs and engines. `python` is
the interpreter alone, which every cold figure contains; the ratio is to it. Warm plans have another seed each, so that
all is decided anew and only files are known; `edited` has read them anew too, because one has changed. The last line
plans a sweep, whose points share one process.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rlrun.config import recall
from rlrun.config.keys import all_keys
from rlrun.plan.build import load_plan
from rlrun.plan.render import render_plan
from rlrun.plan.types import RunPlan
from rlrun.runtime.sweep import plan_all

REPEATS = 5
BIG = ["+experiment=qwen3_grpo"]
NODES = [
    *BIG,
    "placement=split_8gpu",
    "placement.num_nodes=64",
    "placement.trainer.gpus=256",
    "placement.rollout.gpus=256",
]


def best_of(function: Callable[[], object]) -> float:
    """Milliseconds of the fastest run."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def plan_with(words: list[str], seed: int) -> None:
    render_plan(load_plan([*words, f"seed={seed}"]))


def edited(words: list[str]) -> None:
    recall.forget()
    render_plan(load_plan(words))


def cold(*arguments: str) -> float:
    return best_of(lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL))


def written_rows(folder: str, count: int) -> str:
    path = Path(folder) / f"{count}.jsonl"
    row = json.dumps({"prompt": "How many kilometres is that in all? " * 8, "label": "12"}) + "\n"
    path.write_text(row * count)
    return f"data.train.path={path}"


def sizes(plan: RunPlan) -> str:
    return f"{plan.data.train.num_rows:>8,} rows {len(plan.slots):>4} GPUs {len(plan.engines):>4} engines"


def main() -> None:
    python = cold("-c", "pass")
    print(f"{len(all_keys())} keys; python alone {python:.0f} ms\n")
    print(f"{'':<14}{'size':<38}{'cold':>8}{'ratio':>8}{'warm':>9}{'edited':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name, words in (
            ("quickstart", ["+experiment=quickstart"]),
            ("qwen3_grpo", BIG),
            ("64 nodes", NODES),
            ("10,000 rows", [*BIG, written_rows(folder, 10_000)]),
            ("100,000 rows", [*BIG, written_rows(folder, 100_000)]),
        ):
            cold_ms = cold("-m", "rlrun", "plan", *words)
            size, seeds = sizes(load_plan(words)), itertools.count()
            warm_ms = best_of(lambda: plan_with(words, next(seeds)))  # noqa: B023
            edited_ms = best_of(lambda: edited(words))  # noqa: B023
            print(
                f"{name:<14}{size:<38}{cold_ms:>5.0f} ms{cold_ms / python:>7.1f}x{warm_ms:>6.0f} ms{edited_ms:>6.0f} ms"
            )
    points = [["+experiment=quickstart", f"seed={seed}"] for seed in range(32)]
    sweep_ms = best_of(lambda: plan_all(points, None))
    print(f"\nsweep of {len(points)} points: {sweep_ms:.0f} ms, {sweep_ms / len(points):.0f} ms a point")


if __name__ == "__main__":
    main()
