"""The memory block of a plan: a bar for each phase, what fills it, and the KV cache of an engine."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rlrun.plan.layout import GIB
from rlrun.plan.types import HostMemory, KvPlan, MemoryPlan, MemoryTerm, PhaseMemory

CELLS = 10
SMALL = 0.05 * GIB
"""Terms that would be shown as 0.0 are left out; the total has them."""


def memory_title(memory: MemoryPlan) -> str:
    return f"Memory of a GPU ({memory.gpu}), estimated: {memory.verdict}"


def memory_lines(memory: MemoryPlan, width: int) -> list[str]:
    """One line a phase, continued when its terms are many; then the KV cache, logits and the host."""
    lines = []
    for phase in memory.phases:
        lines += _phase(phase, memory.gpu_bytes, width)
    lines += textwrap.wrap(_kv(memory.kv), width, initial_indent="  kv        ", subsequent_indent=" " * 12)
    whole = memory.whole_logits_bytes
    lines.append(f"  logits    made in pieces; whole they would take {_gib(whole)} GiB with their gradient")
    return lines + _host(memory.host, width)


def _phase(phase: PhaseMemory, gpu_bytes: int, width: int) -> list[str]:
    head = f"  {phase.phase:<8}  [{bar(phase.total_bytes, gpu_bytes)}] {_gib(phase.total_bytes)}"
    head += f" of {_gib(gpu_bytes)} GiB  "
    if phase.verdict != "fits":
        head += f"{phase.verdict}: "
    return _terms(head, phase.terms, width)


def _terms(head: str, terms: Sequence[MemoryTerm], width: int) -> list[str]:
    shown = [f"{t.name} {_gib(t.num_bytes)}" for t in terms if t.num_bytes >= SMALL]
    whole = ", ".join(term.replace(" ", "\xa0") for term in shown)  # a term and its number stay together
    lines = textwrap.wrap(whole, width, initial_indent=head, subsequent_indent=" " * 12) or [head.rstrip()]
    return [line.replace("\xa0", " ") for line in lines]


def _kv(kv: KvPlan) -> str:
    """How many samples fit, and whether that is as many as the engine may take on."""
    samples = f"{kv.samples:,} sample{'' if kv.samples == 1 else 's'} of full length at once"
    running = f"up to {kv.max_running:,} requests run"
    if kv.samples < kv.max_running:
        running += f", of {kv.tokens // kv.max_running:,} tokens each before some have to wait"
    return f"{kv.tokens:,} tokens an engine ({kv.bytes_per_token:,} bytes each), {samples}; {running}"


def _host(host: HostMemory, width: int) -> list[str]:
    doing = {"save": "while saving", "rollout": "during rollout"}[host.moment]
    if host.node_bytes is None:
        head = f"  host      {_gib(host.total_bytes)} GiB a node {doing}  "
    else:
        head = f"  host      [{bar(host.total_bytes, host.node_bytes)}] {_gib(host.total_bytes)} of "
        head += f"{_gib(host.node_bytes)} GiB a node {doing}  "
    return _terms(head, host.terms, width)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.1f}"


def bar(used: int, whole: int) -> str:
    """`####......`: rounded, but full only when all is used."""
    filled = round(CELLS * used / whole)
    if used < whole:
        filled = min(filled, CELLS - 1)
    return ("#" * min(filled, CELLS)).ljust(CELLS, ".")
