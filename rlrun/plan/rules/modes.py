"""Keys that a placement without engines, or without a trainer, does not read."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.config.partial import Unreadable
from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.groups import has_engines, has_trainer

MODE = "placement.mode"

ENGINE_GROUPS = ("placement.rollout", "rollout.sglang", "weight_sync")
ENGINE_KEYS = (
    "rollout.models",
    "rollout.stop",
    "rollout.seeded",
    "rollout.request_timeout_s",
    "rollout.max_retries",
    "rollout.max_concurrent_groups",
    "rollout.router_policy",
    "rollout.port",
    "placement.engine_threads",
    "eval.interval",
    "timeouts.generate_s",
    "timeouts.sync_s",
)
TRAINER_GROUPS = ("placement.trainer", "trainer", "weight_sync", "checkpoint")
TRAINER_KEYS = (
    "placement.trainer_threads",
    "placement.host_memory_gib",
    "timeouts.train_s",
    "timeouts.sync_s",
    "timeouts.save_s",
)


def without_engines(c: Context) -> Iterator[Problem]:
    if not has_engines(c.config.placement):
        yield from _inactive(c, ENGINE_GROUPS, ENGINE_KEYS, "is about engines, and a train_only placement has none")


def without_trainer(c: Context) -> Iterator[Problem]:
    if not has_trainer(c.config.placement):
        why = "is about the trainer, and a rollout_only placement has none"
        yield from _inactive(c, TRAINER_GROUPS, TRAINER_KEYS, why)


def _inactive(c: Context, groups: tuple[str, ...], keys: tuple[str, ...], why: str) -> Iterator[Problem]:
    for key in all_keys().values():
        if key.section is not None or not (key.path in keys or key.path.startswith(tuple(f"{g}." for g in groups))):
            continue
        try:
            changed = c.changed(key.path)
        except Unreadable:  # it has a problem of its own
            continue
        if changed:
            hint = f"set {key.path} to {show(key.default)}"
            yield c.problem("inactive-key", f"{key.path} {why}", key.path, MODE, hint=hint)


def nothing_to_evaluate(c: Context) -> Iterator[Problem]:
    if not has_trainer(c.config.placement) and c.config.eval.interval is None:
        summary = "a rollout_only run evaluates and does nothing else, and evaluation is switched off"
        hint = "set eval.interval to 1, with prompts in data.eval.path"
        yield c.problem("nothing-to-evaluate", summary, "eval.interval", MODE, hint=hint)


RULES = (without_engines, without_trainer, nothing_to_evaluate)
