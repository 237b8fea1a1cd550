"""The memory block of a plan: a bar for each phase, what fills it, and the KV cache of an engine."""

from __future__ import annotations

import textwrap

from rlrun.plan.memory import GIB
from rlrun.plan.types import MemoryPlan, PhaseMemory

CELLS = 10
SMALL = 0.05 * GIB
"""Terms that would be shown as 0.0 are left out; the total has them."""


def memory_title(memory: MemoryPlan) -> str:
    return f"Memory of a GPU ({memory.gpu}), estimated: {memory.verdict}"


def memory_lines(memory: MemoryPlan, width: int) -> list[str]:
    """One line a phase, continued when its terms are many, and one for the KV cache."""
    lines = []
    for phase in memory.phases:
        lines += _phase(phase, memory.gpu_bytes, width)
    kv = memory.kv
    samples = f"{kv.samples:,} sample{'' if kv.samples == 1 else 's'} of full length at once"
    lines.append(f"  kv        {kv.tokens:,} tokens an engine ({kv.bytes_per_token:,} bytes each), {samples}")
    return lines


def _phase(phase: PhaseMemory, gpu_bytes: int, width: int) -> list[str]:
    head = f"  {phase.phase:<8}  [{bar(phase.total_bytes, gpu_bytes)}] {phase.total_bytes / GIB:.1f}"
    head += f" of {gpu_bytes / GIB:.1f} GiB  "
    if phase.verdict != "fits":
        head += f"{phase.verdict}: "
    terms = [f"{t.name} {t.num_bytes / GIB:.1f}" for t in phase.terms if t.num_bytes >= SMALL]
    whole = ", ".join(term.replace(" ", "\xa0") for term in terms)  # a term and its number stay together
    lines = textwrap.wrap(whole, width, initial_indent=head, subsequent_indent=" " * 12) or [head.rstrip()]
    return [line.replace("\xa0", " ") for line in lines]


def bar(used: int, whole: int) -> str:
    """`####......`: rounded, but full only when all is used."""
    filled = round(CELLS * used / whole)
    if used < whole:
        filled = min(filled, CELLS - 1)
    return ("#" * min(filled, CELLS)).ljust(CELLS, ".")
