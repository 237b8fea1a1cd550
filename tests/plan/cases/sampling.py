"""Over-long samples, dynamic sampling, functions that look at groups, loss constant, balance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from case import BIG, QUICK, Case

DROP = "dynamic_sampling.filter=drop_zero_variance"


def hook(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / f"{name}.py").write_text(text)

    return write


CASES = [
    Case("filter-needs-group", [QUICK, "algo.group_size=1", DROP], ["dynamic_sampling.filter=none"]),
    Case("no-refill", [QUICK, DROP, "dynamic_sampling.max_refills=0"], ["dynamic_sampling.max_refills=3"]),
    Case("no-refill", [QUICK, DROP, "dynamic_sampling.max_refills=0"], ["algo.groups_per_step=null"]),
    Case("no-refill", [QUICK, DROP, "dynamic_sampling.max_refills=0"], ["dynamic_sampling.over_sampling=1.5"]),
    Case(
        "overlong-buffer-too-long",
        [QUICK, "rollout.overlong=penalize", "rollout.overlong_buffer_tokens=400"],
        ["rollout.overlong_buffer_tokens=1"],
    ),
    Case("overlong-drop-needs-group", [QUICK, "algo.group_size=1", "rollout.overlong=drop"], ["rollout.overlong=mask"]),
    Case("missing-value", [BIG, "rollout.overlong=penalize"], ["rollout.overlong_buffer_tokens=409"]),
    Case("hook-not-importable", [QUICK, "reward.postprocess=nowhere:f"], ["reward.postprocess=null"]),
    Case("hook-not-importable", [QUICK, "dynamic_sampling.filter=nowhere:f"], ["dynamic_sampling.filter=none"]),
    Case(
        "hook-not-importable", [QUICK, "dynamic_sampling.sample_filter=os:sep"], ["dynamic_sampling.sample_filter=null"]
    ),
    Case(
        "hook-not-importable",
        [QUICK, "dynamic_sampling.sample_filter=case_hook_exits:f"],
        ["dynamic_sampling.sample_filter=null"],
        prepare=hook("case_hook_exits", "import sys\nsys.exit(3)\n"),
    ),
    Case(
        "hook-arguments",
        [QUICK, "dynamic_sampling.filter=case_hook_two:f"],
        ["dynamic_sampling.filter=none"],
        prepare=hook("case_hook_two", "def f(group, step): return True\n"),
    ),
    Case(
        "hook-arguments",
        [QUICK, "reward.postprocess=case_hook_async:f"],
        ["reward.postprocess=null"],
        prepare=hook("case_hook_async", "async def f(group): return []\n"),
    ),
    Case("inactive-key", [QUICK, "rollout.overlong_buffer_tokens=1"], ["rollout.overlong_buffer_tokens=null"]),
    Case(
        "inactive-key", [QUICK, "rollout.overlong=mask", "rollout.overlong_penalty=2"], ["rollout.overlong_penalty=1"]
    ),
    Case("inactive-key", [QUICK, "dynamic_sampling.over_sampling=1.5"], ["dynamic_sampling.over_sampling=1"]),
    Case("inactive-key", [QUICK, "dynamic_sampling.max_refills=9"], ["dynamic_sampling.max_refills=3"]),
    Case("inactive-key", [QUICK, "dynamic_sampling.surplus=buffer"], ["dynamic_sampling.surplus=discard"]),
    Case(
        "inactive-key",
        [QUICK, DROP, "algo.groups_per_step=null", "dynamic_sampling.surplus=buffer"],
        ["dynamic_sampling.surplus=discard"],
    ),
    Case("inactive-key", [QUICK, "algo.loss_constant=100"], ["algo.loss_constant=null"]),
    Case("inactive-key", [QUICK, "trainer.balance_by=flops"], ["trainer.balance_by=tokens"]),
    Case("dataset-too-small", [BIG, DROP, "dynamic_sampling.over_sampling=8.1"], ["dynamic_sampling.over_sampling=8"]),
    Case("groups-per-step-indivisible", [QUICK, "algo.groups_per_step=5"], ["algo.groups_per_step=null"]),
    Case(
        "too-few-samples",
        [
            BIG,
            "algo.groups_per_step=null",
            "algo.prompts_per_rollout=1",
            "algo.group_size=2",
            "placement.rollout.gpus=1",
        ],
        ["algo.prompts_per_rollout=2"],
    ),
]
