"""Rules across keys, each a function of its own in `rules/`: configuration in, problems out. All of them run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlrun.config.partial import Unreadable
from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.rules import (
    algo,
    arguments,
    async_mode,
    checkpoint,
    critic,
    engines,
    files,
    frozen,
    memory,
    model,
    modes,
    nodes,
    offload,
    placement,
    policy,
    sampling,
    served,
    served_memory,
    server_groups,
    sft,
    sync,
    time,
)

Rule = Callable[[Context], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    *algo.RULES,
    *policy.RULES,
    *sft.RULES,
    *critic.RULES,
    *sampling.RULES,
    *placement.RULES,
    *nodes.RULES,
    *server_groups.RULES,
    *served.RULES,
    *engines.RULES,
    *modes.RULES,
    *async_mode.RULES,
    *checkpoint.RULES,
    *model.RULES,
    *arguments.RULES,
    *frozen.RULES,
    *offload.RULES,
    *sync.RULES,
    *memory.RULES,
    *served_memory.RULES,
    *time.RULES,
    *files.RULES,
)


def run_checks(context: Context) -> list[Problem]:
    """Every problem that the rules find. A rule that needs a key which is itself wrong says nothing about it."""
    problems: list[Problem] = []
    for rule in RULES:
        try:
            for problem in rule(context):  # one at a time: those found before Unreadable count
                problems.append(problem)
        except Unreadable:
            continue
    return problems
