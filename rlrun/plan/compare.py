"""`rlrun plan --compare GROUP`: the same run with every option of a group, side by side, by its estimated time.

Options that are wrong together with the rest show why and one change, in place of figures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rlrun.errors import Problem, RlrunError, Where
from rlrun.plan.build import load_plan
from rlrun.plan.limits import limits
from rlrun.plan.render import JSON_SCHEMA, WIDTH, Style, plan_document, problems_document
from rlrun.plan.render_time import hours, rate, seconds
from rlrun.plan.types import RunPlan, TimePlan

COMPARED = ("async_mode", "placement", "model", "algo", "experiment")
"""Groups whose options most change what a run takes."""


@dataclass(frozen=True)
class Option:
    """One option of the group: its plan, or its problems."""

    name: str
    plan: RunPlan | None
    problems: tuple[Problem, ...] = ()

    @property
    def time(self) -> TimePlan | None:
        return self.plan.time if self.plan is not None else None


@dataclass(frozen=True)
class Comparison:
    group: str
    options: tuple[Option, ...]

    @property
    def fastest(self) -> str | None:
        """The option with the shortest step; None without estimates."""
        return min(self._timed(), key=lambda found: found[1].step_s, default=(None, None))[0]

    @property
    def cheapest(self) -> str | None:
        """The option with the fewest GPU-hours; None without estimates."""
        return min(self._timed(), key=lambda found: found[1].gpu_hours, default=(None, None))[0]

    def _timed(self) -> list[tuple[str, TimePlan]]:
        return [(option.name, option.time) for option in self.options if option.time is not None]


def compare(group: str, words: Sequence[str], config_dir: str | None = None) -> Comparison:
    """Plans every option. Raises RlrunError for a group that there is not, and, with the problems of all, when no
    option can be planned."""
    from rlrun.config.compose import Groups

    names = Groups(config_dir).options(group)
    if not names:
        where = (Where("command line", f"--compare {group}"),)
        hint = f"choose one of {', '.join(COMPARED)}, or a folder of --config-dir"
        raise RlrunError(Problem("unknown-option", f"there is no group `{group}`", where, hint))
    kept = [word for word in words if word.partition("=")[0].lstrip("+") != group]
    options = tuple(_option(group, name, kept, config_dir) for name in names)
    if all(option.plan is None for option in options):
        raise RlrunError(_shared(options))
    return Comparison(group, options)


def _option(group: str, name: str, words: Sequence[str], config_dir: str | None) -> Option:
    try:
        return Option(name, load_plan([*words, f"{group}={name}"], config_dir))
    except RlrunError as e:
        return Option(name, None, e.problems)


def _shared(options: Sequence[Option]) -> list[Problem]:
    """What is wrong with every option; when that is nothing, what is wrong with any, with the option's name."""
    every = [{(p.code, p.summary) for p in option.problems} for option in options]
    common = set.intersection(*every)
    shared = [p for p in options[0].problems if (p.code, p.summary) in common]
    named = [
        Problem(p.code, f"{p.summary} (in {option.name})", p.where, p.hint)
        for option in options
        for p in option.problems
    ]
    return shared or named


HEADER = ("", "placement", "GPUs", "step", "tokens/s", "bubble", "stale", "hours", "GPU-hours", "")


def render_comparison(comparison: Comparison, stream: TextIO | None = None) -> str:
    """A table with a row an option, then what is wrong with those that have none."""
    style = Style(stream)
    plans = [option.plan for option in comparison.options if option.plan is not None]
    rows = [HEADER, *(_row(comparison, option) for option in comparison.options)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    table = [_aligned(row, widths) for row in rows]
    steps = sorted({plan.num_steps for plan in plans})
    title = f"{plans[0].name} by {comparison.group}, {' or '.join(f'{n:,}' for n in steps)} steps, estimated"
    text = "\n".join([style.bold(title), *table])
    notes = [_problems(option) for option in comparison.options if option.plan is None]
    notes += [_limits(option) for option in comparison.options if option.plan is not None and limits(option.plan)]
    count = len(comparison.options)
    ending = f"{len(plans)} of {count} options can be planned. Nothing was started."
    return "\n\n".join([text, *(["\n".join(notes)] if notes else []), ending])


def _row(comparison: Comparison, option: Option) -> tuple[str, ...]:
    if option.plan is None:
        return (option.name, "no plan", *[""] * 8)
    plan, time = option.plan, option.time
    gpus = f"{len(plan.slots):,}"
    if time is None:
        return (option.name, plan.placement_mode, gpus, *[""] * 6, "no estimate on cpu")
    best = {"fastest": comparison.fastest, "cheapest": comparison.cheapest}
    marks = [word for word, name in best.items() if name == option.name]
    figures = (
        seconds(time.step_s),
        rate(time.tokens_per_s),
        f"{100 * time.bubble:.0f} %",
        f"{time.staleness:.1f} of {plan.max_staleness}",
        hours(time.run_hours),
        hours(time.gpu_hours),
    )
    return (option.name, plan.placement_mode, gpus, *figures, ", ".join(marks))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, figures to the right."""
    cells = [
        text.ljust(width) if i in (0, 1, len(row) - 1) else text.rjust(width)
        for i, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  " + "  ".join(cells).rstrip()


def _problems(option: Option) -> str:
    """The codes, and the first problem's one change."""
    codes = ", ".join(dict.fromkeys(p.code for p in option.problems))
    hint = f"; {option.problems[0].hint}" if option.problems[0].hint else ""
    return _note(f"{option.name}: error[{codes}]{hint}")


def _limits(option: Option) -> str:
    assert option.plan is not None
    return _note(f"{option.name}: cannot run yet, {', '.join(limit.code for limit in limits(option.plan))}")


def _note(text: str) -> str:
    lines = textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    return "\n".join(lines)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """With --json: for every option what `plan --json` prints for it."""
    return {
        "schema": JSON_SCHEMA,
        "group": comparison.group,
        "fastest": comparison.fastest,
        "cheapest": comparison.cheapest,
        "options": {
            option.name: plan_document(option.plan) if option.plan is not None else problems_document(option.problems)
            for option in comparison.options
        },
    }
