"""Do frozen models fit into the GPUs of their engines, and beside the trainer where they share them. cuda only.

Of SGLang's share of a GPU nothing has to be known but its size: weights and KV cache fill it, whatever the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.context import Context, local_path
from rlrun.plan.decide.model import by_device
from rlrun.plan.groups import POLICY, Group
from rlrun.plan.layout import DEFAULT_FRACTION, GIB, GPUS, Layout
from rlrun.plan.memory import estimate
from rlrun.plan.placement import trainer_slots
from rlrun.plan.rules.memory import layout_of
from rlrun.plan.rules.server_groups import sglang_of
from rlrun.plan.served import weight_bytes
from rlrun.plan.types import PhaseMemory

ENGINE_TERMS = ("engine weights", "KV cache", "request states")
LEAST = 0.05
"""Smallest share that is proposed."""


def frozen_models(c: Context) -> Iterator[Problem]:
    p, models = c.config.placement, c.config.rollout.models
    if p.device != "cuda":
        return
    layout = layout_of(c)
    for group in c.groups:
        if group.model == POLICY or group.model not in models or not group.has_engines or group.gpus % group.size:
            continue
        yield from _too_small(c, group)
        beside = p.mode == "colocated" and not set(trainer_slots(p)).isdisjoint(group.slots)
        if beside and layout is not None and sglang_of(c, group).mem_fraction_static is not None:
            yield from _beside_trainer(c, group, layout)


def _keys(c: Context, group: Group) -> tuple[str, float]:
    """The key of the engines' share of a GPU, and the share."""
    own = "mem_fraction_static" in group.sglang
    key = f"{group.key}.sglang.mem_fraction_static" if own else "rollout.sglang.mem_fraction_static"
    return key, sglang_of(c, group).mem_fraction_static or DEFAULT_FRACTION


def _too_small(c: Context, group: Group) -> Iterator[Problem]:
    """Weights that their share of a GPU cannot hold."""
    p, model = c.config.placement, c.config.rollout.models[group.model]
    key, fraction = _keys(c, group)
    each = weight_bytes(local_path(model.path), by_device(model.dtype, p.device)) / group.size
    gpu = GPUS[p.gpu] * GIB
    if each <= fraction * gpu:
        return
    summary = (
        f"{group.model} has {each / GIB:.1f} GiB of weights for each of an engine's {group.size} GPUs, and its share "
        f"of one is {fraction:g} of {gpu / GIB:.1f} GiB"
    )
    larger = math.ceil(100 * each / gpu + 5) / 100  # with a little for a KV cache
    hint = f"set {key} to {larger:g}" if larger < 1 else f"set {group.size_key} to {2 * group.size} or more"
    yield c.problem("engine-memory-too-small", summary, key, group.size_key, "placement.gpu", hint=hint)


def _beside_trainer(c: Context, group: Group, layout: Layout) -> Iterator[Problem]:
    """The trainer's phases, with this engine on the GPU in place of one of the policy."""
    key, fraction = _keys(c, group)
    memory, gpu = estimate(layout), layout.gpu_bytes
    if memory.verdict == "does not fit":  # rules/memory.py says so, and how it would
        return
    there = [phase for phase in memory.phases if not layout.rollout_offload or phase.phase == "rollout"]
    worst = max(there, key=_without_engine)
    rest = _without_engine(worst)
    total = rest + int(fraction * gpu)
    if total <= gpu:
        return
    summary = (
        f"{worst.phase} needs {total / GIB:.1f} GiB of a GPU that has {gpu / GIB:.1f} ({layout.gpu}), where "
        f"{group.model} (group {group.name}) shares it with the trainer: {fraction * gpu / GIB:.1f} GiB are "
        f"{group.model}'s share of {fraction:g}"
    )
    smaller = math.floor(100 * (gpu - rest) / gpu) / 100
    hint = "set placement.mode to disaggregated, or use more GPUs (placement.trainer.gpus)"
    if smaller >= LEAST:
        hint = f"set {key} to {smaller:g}"
    yield c.problem("memory-does-not-fit", summary, key, "placement.gpu", "placement.mode", hint=hint)


def _without_engine(phase: PhaseMemory) -> int:
    return sum(term.num_bytes for term in phase.terms if term.name not in ENGINE_TERMS)


RULES = (frozen_models,)
