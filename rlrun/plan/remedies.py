"""Changes that lower a run's GPU memory, cheapest first; the effect of each is recomputed, never assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rlrun.plan.layout import TIGHT, Layout
from rlrun.plan.memory import estimate, worst_phase
from rlrun.plan.types import MemoryPlan

FEW_SAMPLES = 8
"""Full-length samples that a KV cache should at least hold at once; fewer make generation slow."""

MOST_CHANGES = 8

PLANNED_ONLY = {
    "rollout.offload",
    "trainer.offload",
    "trainer.optimizer_offload",
}
"""Keys with which `rlrun.plan.limits` refuses to run; where a run could start without them they come last."""


@dataclass(frozen=True)
class Remedy:
    """One key with another value, and what the run would then look like."""

    key: str
    value: Any
    layout: Layout
    memory: MemoryPlan


Valid = Callable[[Layout], bool]


def word(value: Any) -> str:
    """A value as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def remedies(m: Layout, valid: Valid, runnable: bool = False) -> list[Remedy]:
    """Single changes that really lower the worst phase, cheapest first. `valid` says whether the sizes of a layout
    divide. `runnable`: only changes that this version can run; the others can only be planned."""
    before = worst_phase(estimate(m)).total_bytes
    found = []
    for key, value, layout in _changes(m):
        if layout is None or not valid(layout) or (runnable and key in PLANNED_ONLY):
            continue
        memory = estimate(layout)
        if worst_phase(memory).total_bytes < before and holds_a_sample(memory):
            found.append(Remedy(key, value, layout, memory))
    return found


def holds_a_sample(memory: MemoryPlan) -> bool:
    return memory.kv.samples >= 1


def _changes(m: Layout) -> Iterator[tuple[str, Any, Layout | None]]:
    """What could be changed, roughly from what costs least time to what costs most."""
    if not m.distributed_optimizer and m.dp * m.cp > 1:
        yield "trainer.distributed_optimizer", True, replace(m, distributed_optimizer=True)
    if not m.sequence_parallel and m.tp > 1:
        yield "trainer.sequence_parallel", True, replace(m, sequence_parallel=True)
    if m.distributed_optimizer and not m.gather_on_host:
        yield "checkpoint.gather", "host", replace(m, gather_on_host=True)
    if m.colocated and not m.rollout_offload:
        yield "rollout.offload", True, replace(m, rollout_offload=True)
    if m.colocated and not m.trainer_offload:
        yield "trainer.offload", True, replace(m, trainer_offload=True)
    if m.colocated:
        fraction, layout = _smaller_fraction(m)
        yield "rollout.sglang.mem_fraction_static", fraction, layout
    if m.max_tokens is not None and m.max_tokens > m.sample_tokens:
        cap = _halved(m.max_tokens, m.sample_tokens, lambda size: estimate(replace(m, max_tokens=size)))
        yield "trainer.max_tokens_per_gpu", cap, replace(m, max_tokens=cap)
    if m.micro_batch_size is not None and m.micro_batch_size > 1:
        size = _halved(m.micro_batch_size, 1, lambda size: estimate(replace(m, micro_batch_size=size)))
        yield "trainer.micro_batch_size", size, replace(m, micro_batch_size=size)
    if not m.recompute:
        yield "trainer.recompute", "full", replace(m, recompute=True)
    if m.spec.moe is not None:
        yield "placement.trainer.ep", 2 * m.ep, replace(m, ep=2 * m.ep)
    if m.distributed_optimizer and not m.optimizer_offload and m.moment_bytes == 4:
        yield "trainer.optimizer_offload", True, replace(m, optimizer_offload=True)
    if m.dp % 2 == 0:
        if m.spec.moe is None or m.sequence_parallel:  # else Megatron would not train the experts
            yield "placement.trainer.tp", 2 * m.tp, replace(m, tp=2 * m.tp, dp=m.dp // 2)
        yield "placement.trainer.pp", 2 * m.pp, replace(m, pp=2 * m.pp, dp=m.dp // 2)
        if m.spec.linear_attention is None:  # a gated delta net needs whole sequences
            yield "placement.trainer.cp", 2 * m.cp, replace(m, cp=2 * m.cp, dp=m.dp // 2)
    yield "placement.rollout.gpus_per_engine", 2 * m.engine_tp * m.engine_pp, replace(m, engine_tp=2 * m.engine_tp)


def _halved(size: int, least: int, memory: Callable[[int], MemoryPlan]) -> int:
    """`size` halved until the run fits, at least `least`."""
    while size > least:
        size = max(least, size // 2)
        if memory(size).verdict != "does not fit":
            break
    return size


def _smaller_fraction(m: Layout) -> tuple[float, Layout | None]:
    """The largest share, in steps of 0.05, with which the run fits easily and the KV cache still holds some samples;
    else the smallest that holds them."""
    best: tuple[float, Layout | None] = (0.0, None)
    for step in range(19, 0, -1):
        fraction = step / 20
        if m.mem_fraction is not None and fraction >= m.mem_fraction:
            continue
        layout = replace(m, mem_fraction=fraction)
        memory = estimate(layout)
        if memory.kv.samples < FEW_SAMPLES:
            break
        best = (fraction, layout)
        if worst_phase(memory).total_bytes <= TIGHT * m.gpu_bytes:
            break
    return best


def cheapest_two(m: Layout, valid: Valid) -> tuple[list[Remedy], bool]:
    """The two cheapest changes each of which makes the run fit, and True; or, when none does alone, the two that lower
    it most, and False."""
    can_run = remedies(m, valid, runnable=True)
    found = can_run + [r for r in remedies(m, valid) if r not in can_run]
    enough = [r for r in found if r.memory.verdict != "does not fit"]
    if enough:
        return enough[:2], True
    return sorted(found, key=lambda r: worst_phase(r.memory).total_bytes)[:2], False


def suggest(m: Layout, valid: Valid) -> dict[str, Any] | None:
    """Changes, key to value, with which the run fits: each time the cheapest that is enough, else the one that helps
    most. Empty when it fits as it is, None when the search finds none."""
    chosen: dict[str, Any] = {}
    for _ in range(MOST_CHANGES):
        memory = estimate(m)
        if memory.verdict != "does not fit" and holds_a_sample(memory):
            return chosen
        if not holds_a_sample(memory):
            better = room_for_a_sample(m, valid)
            if better is None:
                return None
        else:
            found, _ = cheapest_two(m, valid)
            if not found:
                return None
            better = found[0]
        chosen[better.key] = better.value
        m = better.layout
    return None


def room_for_a_sample(m: Layout, valid: Valid) -> Remedy | None:
    """The change with which an engine's share holds its weights and a few samples: a larger share while everything
    still fits, else more GPUs an engine."""
    fraction = m.mem_fraction or 0.0
    key, changes = "rollout.sglang.mem_fraction_static", []
    for step in range(1, 20):
        if step / 20 > fraction and m.max_total_tokens is None:
            changes.append((key, step / 20, replace(m, mem_fraction=step / 20)))
    size, wider = "placement.rollout.gpus_per_engine", m.engine_tp * 2
    while wider <= 64:
        changes.append((size, wider * m.engine_pp, replace(m, engine_tp=wider)))
        wider *= 2
    options = [Remedy(k, v, layout, estimate(layout)) for k, v, layout in changes if valid(layout)]
    holding = [r for r in options if holds_a_sample(r.memory)]
    fitting = [r for r in holding if r.memory.verdict != "does not fit"]
    return next(iter([*fitting, *holding]), None)
