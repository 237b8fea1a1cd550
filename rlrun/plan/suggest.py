"""`rlrun plan --suggest`: the overrides that make a run fit, proved by planning again with them."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.config.load import load
from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.checks import run_checks
from rlrun.plan.context import Context
from rlrun.plan.layout import GIB
from rlrun.plan.memory import worst_phase
from rlrun.plan.remedies import suggest, word
from rlrun.plan.rules.memory import FRACTION, engine_keys, layout_of, validity

MEMORY_CODES = {"memory-does-not-fit", "engine-memory-too-small", "engine-memory-unset"}


def suggest_text(words: Sequence[str], config_dir: str | None = None) -> str:
    """What to add to the command line, or that nothing has to or can be. Raises RlrunError with the problems that are
    not about memory."""
    overrides = suggest_overrides(words, config_dir)
    if overrides is None:
        return (
            "No change of recomputation, micro-batch, memory shares or parallel sizes makes this run fit.\n"
            "It needs more GPUs, GPUs with more memory, or a smaller model."
        )
    if not overrides:
        plan = load_plan(words, config_dir)
        return "This run fits as it is." if plan.memory is not None else "A run on cpu has no memory gate."
    memory = load_plan([*without_keys(words, overrides), *overrides], config_dir).memory
    assert memory is not None
    worst = worst_phase(memory)
    need = f"{worst.phase} then takes {worst.total_bytes / GIB:.1f} of {memory.gpu_bytes / GIB:.1f} GiB"
    samples = f"an engine holds {memory.kv.samples:,} samples of full length at once"
    return "\n".join(["Add:", f"  {' '.join(overrides)}", f"It {memory.verdict}: {need}; {samples}."])


def suggest_overrides(words: Sequence[str], config_dir: str | None = None) -> list[str] | None:
    """Overrides with which the run plans; empty when it does as it is, None when the search finds none. Raises
    RlrunError as `suggest_text` does."""
    loaded = load(words, config_dir)
    context = Context(loaded.config, loaded.origins)
    problems = [*loaded.problems, *run_checks(context)]
    other = [p for p in problems if p.code not in MEMORY_CODES]
    if other:
        raise RlrunError(other)
    layout = layout_of(context)
    if layout is None or not problems:
        return []
    changes = suggest(layout, validity(context))
    if changes is None:
        return None
    names = {FRACTION: engine_keys(context)[0]}  # a server group may have a share of its own
    overrides = [f"{names.get(key, key)}={word(value)}" for key, value in changes.items()]
    try:
        load_plan([*without_keys(words, overrides), *overrides], config_dir)
    except RlrunError:
        return None
    return overrides


def without_keys(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The words but those that set what `overrides` sets."""
    keys = {override.split("=")[0] for override in overrides}
    return [word for word in words if word.lstrip("+").split("=")[0] not in keys]
