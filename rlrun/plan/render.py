"""A plan or its problems as text for people, or as JSON for programs. Nothing is decided here."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from rlrun.config.origin import show
from rlrun.errors import Problem, RunFailed, Where
from rlrun.plan.render_facts import count, facts
from rlrun.plan.render_memory import memory_lines, memory_title
from rlrun.plan.render_placement import map_lines, map_rows
from rlrun.plan.render_time import time_lines, time_title
from rlrun.plan.types import (
    ChangedValue,
    GroupPlan,
    RunPlan,
)

WIDTH = 100
JSON_SCHEMA = 1
"""Raised when a field of the JSON output changes its name or meaning."""


class Style:
    """ANSI colours, only on a terminal and not with NO_COLOR."""

    def __init__(self, stream: TextIO | None):
        self._on = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")

    def bold(self, text: str) -> str:
        return self._paint(text, "1")

    def red(self, text: str) -> str:
        return self._paint(text, "1;31")

    def dim(self, text: str) -> str:
        return self._paint(text, "2")

    def cyan(self, text: str) -> str:
        return self._paint(text, "36")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._on else text


def render_problems(problems: Sequence[Problem], stream: TextIO | None = None) -> str:
    """All problems, then their number. `stream` is where the text will go; without one there is no colour."""
    style = Style(stream)
    found = f"Found {count(len(problems), 'error')}. Nothing was started."
    return "\n\n".join([*(_problem(p, style) for p in problems), found])


def render_failure(error: RunFailed, stream: TextIO | None = None) -> str:
    """A run that broke, outside of a run folder."""
    return _problem(Problem("run-failed", f"{error.part}: {error.summary}", hint=error.hint), Style(stream))


def _problem(problem: Problem, style: Style) -> str:
    head = f"error[{problem.code}]: "
    first, *more = _wrap(problem.summary, len(head)) or [""]
    lines = [style.red(f"error[{problem.code}]") + f": {first}", *(f"  {line}" for line in more)]
    width = max((len(w.origin) for w in problem.where), default=0)
    lines += [_where(w, width, style) for w in problem.where]
    if problem.hint:
        first, *more = _wrap(problem.hint, len("hint: ")) or [""]
        lines += ["", style.cyan("hint:") + f" {first}", *(f"      {line}" for line in more)]
    return "\n".join(lines)


def _where(where: Where, width: int, style: Style) -> str:
    return f"  {style.dim(where.origin.ljust(width))}   {where.text}".rstrip()


def _wrap(text: str, first: int) -> list[str]:
    """Wraps at WIDTH and keeps the line breaks there are; long words, such as paths, stay whole."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        indent = " " * (first if not lines else 6)
        wrapped = textwrap.wrap(paragraph, WIDTH, initial_indent=indent, subsequent_indent=" " * 6,
                                break_long_words=False, break_on_hyphens=False)  # fmt: skip
        lines += [line.strip() for line in wrapped]
    return lines


def render_plan(plan: RunPlan, stream: TextIO | None = None) -> str:
    """The plan on one screen: what runs where, batch arithmetic, weights, and what differs from the defaults."""
    style = Style(stream)
    blocks = [style.bold(_title(plan)), _rows(_processes(plan), style)]
    if len(plan.slots) > 1:
        blocks.append(style.bold("Map") + "\n" + "\n".join(map_lines(plan, WIDTH)))
    blocks.append(_rows(facts(plan), style))
    if plan.memory is not None:
        blocks.append(style.bold(memory_title(plan.memory)) + "\n" + "\n".join(memory_lines(plan.memory, WIDTH)))
    if plan.time is not None:
        blocks.append(style.bold(time_title(plan.time)) + "\n" + "\n".join(time_lines(plan, WIDTH)))
    if plan.changed:
        blocks.append(style.bold("Set away from the defaults") + "\n" + _changes(plan.changed, style))
    blocks.append(_counts(plan))
    return "\n\n".join(blocks)


def render_sweep(plans: Sequence[RunPlan], names: Sequence[str], stream: TextIO | None = None) -> str:
    """The first point in full, then each point's difference and hash."""
    style = Style(stream)
    width = max(len(name) for name in names)
    rows = [f"  {name:<{width}}   {style.dim(plan.config_hash)}" for name, plan in zip(names, plans, strict=True)]
    title = style.bold(f"Sweep of {count(len(plans), 'point')}, one after the other")
    return "\n\n".join([render_plan(plans[0], stream), "\n".join([title, *rows])])


def _title(plan: RunPlan) -> str:
    name = plan.name if plan.twin is None else f"CPU twin of {plan.twin}"
    if plan.device == "cpu":
        return f"Plan: {name}, {count(plan.num_nodes, 'node')} x {count(plan.gpus_per_node, 'slot')} on CPU"
    return f"Plan: {name}, {count(plan.num_nodes, 'node')} x {count(plan.gpus_per_node, 'GPU')}"


def _processes(plan: RunPlan) -> list[tuple[str, str]]:
    """Which slots do what."""
    train, unit = plan.train, "slot" if plan.device == "cpu" else "GPU"
    rows = []
    if train.slots:
        sizes = [
            f"{name} {size}"
            for name, size in (
                ("tp", train.tp),
                ("pp", train.pp),
                ("cp", train.cp),
                ("ep", train.ep),
                ("etp", train.etp),
            )
            if size > 1
        ]
        if len(set(train.stage_layers)) > 1:
            sizes[sizes.index(f"pp {train.pp}")] += f" ({'+'.join(map(str, train.stage_layers))} layers)"
        critic = " + critic" if plan.critic is not None else ""
        shape = " x ".join([*sizes, f"dp {train.dp}"])
        rows.append((_slots(unit, train.slots), f"train    megatron  {shape}{critic}, {train.backend}"))
    rows += [(_slots(unit, group.slots), _group(plan, group, unit)) for group in plan.deployment.groups]
    rows += [
        ("external", f"rollout  sglang    {e.model} at {e.url}, attached{_router(plan, e.model)}")
        for e in plan.deployment.external
    ]
    return rows


def _group(plan: RunPlan, group: GroupPlan, unit: str) -> str:
    """The engines of a server group."""
    if group.type == "placeholder":
        return "hold     nothing   placeholder"
    first = plan.engines[group.engines[0]]
    parts = [("tp", first.tp), ("pp", first.pp), ("ep", first.ep), ("dp attention", first.dp_attention)]
    sizes = ", ".join(f"{name} {size}" for name, size in parts if size > 1)
    each = len(first.slots)
    size = f" x {count(each, unit)} ({sizes})" if each > 1 else f" x 1 {unit}"
    span = f", {len(first.nodes)} nodes each" if len(first.nodes) > 1 else ""
    router = _router(plan, group.model)
    name = "rollout" if group.type == "regular" and group.model == "policy" else group.type
    model = "" if group.model == "policy" else f"{group.model}, "
    engines = count(len(group.engines), "engine")
    return f"{name:<7}  sglang    {model}{engines}{size}{span}, {first.attention_backend} attention{router}"


def _router(plan: RunPlan, model: str) -> str:
    served = {m.name: m.router for m in plan.deployment.models}
    router = served.get(model, plan.router if model == "policy" else None)
    return f", sglang-router {router.policy}" if router else ""


def _changes(changed: Sequence[ChangedValue], style: Style) -> str:
    rows = [(c.key, shorten(_change(c)), c.origin) for c in changed]
    key_width = max(len(key) for key, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    return "\n".join(
        f"  {key:<{key_width}}  {value:<{value_width}}   {style.dim(origin)}" for key, value, origin in rows
    )


def _change(c: ChangedValue) -> str:
    """A twin may have gone back to the default."""
    return f"{show(c.default)} -> {show(c.value)}" if c.value != c.default else show(c.value)


def _counts(plan: RunPlan) -> str:
    workers, engines = count(len(plan.train.slots), "train worker"), count(len(plan.engines), "engine")
    unit = "slots" if plan.device == "cpu" else "GPUs"
    return (
        f"{workers}, {engines}, {len(plan.slots)} of {plan.num_nodes * plan.gpus_per_node} {unit}. Nothing was started."
    )


def _rows(rows: Sequence[tuple[str, str]], style: Style) -> str:
    width = max(8, *(len(name) for name, _ in rows))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows)


def _slots(unit: str, slots: Sequence[int]) -> str:
    first, last = min(slots), max(slots)
    return f"{unit} {first}" if first == last else f"{unit} {first}-{last}"


def shorten(text: str, most: int = 30) -> str:
    """At most so many characters, with dots when something was cut."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def plan_document(plan: RunPlan) -> dict[str, Any]:
    """`rlrun plan --json`: the fields of RunPlan under `plan`, the cells of the map node by node, and no problems."""
    return {"schema": JSON_SCHEMA, "plan": dataclasses.asdict(plan), "map": map_rows(plan), "problems": []}


def problems_document(problems: Sequence[Problem]) -> dict[str, Any]:
    """`rlrun plan --json` of a configuration that is wrong: no plan, and the fields of every Problem."""
    return {"schema": JSON_SCHEMA, "plan": None, "map": None, "problems": [dataclasses.asdict(p) for p in problems]}
