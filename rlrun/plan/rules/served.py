"""Frozen models that are served, beyond their place in server groups: who asks for them, and what they can serve."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.config.partial import Unreadable
from rlrun.errors import Problem, RlrunError
from rlrun.plan.context import Context, local_path
from rlrun.plan.groups import POLICY, external_policy, has_engines, has_trainer
from rlrun.plan.served import longest_context

MODELS = "rollout.models"
HOOKS = ("reward.postprocess", "dynamic_sampling.filter", "dynamic_sampling.sample_filter")

COPIED_ROUTERS = ("glm4_moe", "glm4_moe_lite")
"""Families whose routers SGLang copies to float32 at the first request, and leaves so when new weights arrive, unless
rlrun has started the server (`rlrun.backends.sglang.derived`)."""


def models_of(c: Context) -> Mapping[str, Any] | None:
    """The frozen models, for a function that may ask for them; None when there are none."""
    try:
        return c.config.rollout.models or None
    except Unreadable:  # it has a problem of its own
        return {}


def asked(c: Context) -> Iterator[Problem]:
    """A model that none of the user's functions asks for is served for nothing."""
    models, p = c.config.rollout.models, c.config.placement
    if not models or not has_engines(p) or POLICY in models or c.config.reward is None:
        return
    uses = {group.model for group in c.groups if group.has_engines} | {e.model for e in p.rollout.external}
    if not set(models) <= uses <= {POLICY, *models} or any(asks for asks in _asking(c)):
        return
    names = ", ".join(models)
    summary = f"{names} would be served, and neither the reward function nor a hook has a parameter `models`"
    keys = (f"{MODELS}.{next(iter(models))}.path", "reward.function")
    hint = (
        f"set reward.function to one with a parameter `models`, which is given {names} by name (such as "
        f"rlrun.agents.judges:graded), or remove {MODELS}"
    )
    yield c.problem("served-model-unused", summary, *keys, hint=hint)


def _asking(c: Context) -> Iterator[bool]:
    """For each of the user's functions that can be imported, whether it asks for models. An import that fails counts as
    one that does: another rule speaks of it."""
    from rlrun.agents.hooks import import_function
    from rlrun.agents.models import NAME, asks
    from rlrun.agents.rewards import import_reward

    def found(load: Callable[[str], Callable[..., Any]], path: str) -> bool:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the plan
                return asks(load(path))
        except (RlrunError, SystemExit):
            return True

    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m rlrun` has it; the console script has not
    yield found(import_reward, c.value("reward.function")) and NAME not in c.value("reward.arguments")
    for path in map(c.value, HOOKS):
        if path is not None and ":" in path:
            yield found(import_function, path)


def contexts(c: Context) -> Iterator[Problem]:
    """Requests as long as rollout.models allows them; a model on the Hub is looked at when it is here."""
    for name, model in c.config.rollout.models.items():
        folder = local_path(model.path)
        most = longest_context(Path(folder), c.config.placement.device) if folder is not None else None
        key = f"{MODELS}.{name}.context_length"
        if most is None or not any(g.model == name and g.has_engines for g in c.groups):
            continue
        if model.context_length is not None and model.context_length > most.tokens:
            summary = f"a context of {model.context_length} tokens is too long for {model.path}: {most.why}"
            yield c.problem("served-context", summary, key, f"{MODELS}.{name}.path", hint=f"set {key} to {most.tokens}")
        elif model.context_length is None and most.has_to_be_written:
            summary = f"the context of {model.path} has to be bounded: {most.why}"
            yield c.problem("served-context", summary, key, f"{MODELS}.{name}.path", hint=f"set {key} to {most.tokens}")


def contexts_used(c: Context) -> Iterator[Problem]:
    """Keys about engines of ours, for a model that external servers have."""
    for name in c.config.rollout.models:
        if any(group.model == name and group.has_engines for group in c.groups):
            continue
        for field, default in (("context_length", "null"), ("dtype", "auto"), ("gpus_per_engine", "null")):
            key = f"{MODELS}.{name}.{field}"
            if any(e.model == name for e in c.config.placement.rollout.external) and c.value(key) != (
                "auto" if default == "auto" else None
            ):
                summary = f"{key} is about engines that the run starts, and {name} has external ones"
                yield c.problem("inactive-key", summary, key, hint=f"set {key} to {default}")


def external_copies(c: Context) -> Iterator[Problem]:
    p, m = c.config.placement, c.config.model
    if not has_trainer(p) or not external_policy(p) or m.family not in COPIED_ROUTERS:
        return
    if m.dtype == "float32" or (m.dtype == "auto" and p.device == "cpu"):
        return  # the copy is the weight itself
    summary = (
        f"SGLang copies the routers of family {m.family} at the first request, and a server that rlrun does not start "
        "would route by the first ones for ever"
    )
    keys = ("placement.rollout.external", "model.family")
    hint = "remove the policy's servers from placement.rollout.external, so that rlrun starts its own"
    yield c.problem("external-family", summary, *keys, hint=hint)


RULES = (asked, contexts, contexts_used, external_copies)
