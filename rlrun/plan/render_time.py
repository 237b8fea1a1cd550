"""The time block of a plan: a bar for each phase of a step, what the step comes to, and what was assumed."""

from __future__ import annotations

import textwrap

from rlrun.plan.render_memory import bar
from rlrun.plan.types import RunPlan, TimePlan


def time_title(time: TimePlan) -> str:
    return f"Time of a step, estimated: {seconds(time.step_s)}"


def time_lines(plan: RunPlan, width: int) -> list[str]:
    """One line a phase, the step, and the assumptions."""
    time = plan.time
    assert time is not None
    cells = max(time.step_s, *(phase.seconds for phase in time.phases))
    lines = []
    for phase in time.phases:
        note = f"  {_decoding(time)}" if phase.phase == "generate" else _overlapped(plan, phase.phase)
        lines.append(f"  {phase.phase:<8}  [{bar_of(phase.seconds, cells)}] {seconds(phase.seconds):<7}{note}".rstrip())
    lines.append(f"  step      {step_text(time)}; {plan.num_steps:,} steps {hours_text(time)}")
    return lines + textwrap.wrap(_assumed(plan), width, initial_indent="  assumed   ", subsequent_indent=" " * 12)


def step_text(time: TimePlan) -> str:
    mean = f"{time.staleness:.1f}".removesuffix(".0")
    return f"{rate(time.tokens_per_s)} tokens/s, {100 * time.bubble:.0f} % bubble, mean staleness {mean}"


def hours_text(time: TimePlan) -> str:
    return f"{hours(time.run_hours)} hours, {hours(time.gpu_hours)} GPU-hours"


def bar_of(part: float, whole: float) -> str:
    return bar(round(1000 * part), max(1, round(1000 * whole)))


def seconds(value: float) -> str:
    """`0.03 s`, `4.2 s`, `180 s`: two digits at least, none that would pretend to be exact."""
    if value < 0.005:
        return "<0.01 s"
    return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s" if value < 9.95 else f"{value:,.0f} s"


def rate(value: float) -> str:
    """Three digits: the others would pretend to be known."""
    return f"{float(f'{value:.3g}'):,.0f}"


def hours(value: float) -> str:
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 99.5 else f"{value:,.0f}"


def _decoding(time: TimePlan) -> str:
    text = f"{time.running:,} samples an engine, {1e3 * time.decode_step_s:.0f} ms a token by {time.decode_bound}"
    if time.tail_s >= 0.01 * time.step_s:
        text += f", tail {seconds(time.tail_s)}"
    if time.interrupted_s >= 0.01 * time.step_s:
        text += f", interrupted {seconds(time.interrupted_s)}"
    return text


def _overlapped(plan: RunPlan, phase: str) -> str:
    if plan.async_mode.name != "sync" and phase in ("logprob", "critic", "train"):
        return "  beside generate"
    every = plan.async_mode.weight_sync_interval
    return f"  every {every} steps" if phase == "sync" and every > 1 else ""


def _assumed(plan: RunPlan) -> str:
    time = plan.time
    assert time is not None
    known = "" if plan.rollout.expected_response_tokens else " (see rollout.expected_response_tokens)"
    return (
        f"mean prompt {time.prompt_tokens:,.0f} tokens, response {time.response_tokens:,.0f}{known}, longest "
        f"{plan.rollout.max_response_tokens:,}; no rewards, evaluation, checkpoints; estimates came to 0.6 to 1.5 "
        "times published steps, and weight syncs are less sure"
    )
