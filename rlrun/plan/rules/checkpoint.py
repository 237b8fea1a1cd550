"""When checkpoints and exports are made, and which of them stay: keys that do nothing, and steps that never come."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.groups import has_trainer
from rlrun.plan.rules.algo import inactive

KEEP_EVERY, HF_INTERVAL = "checkpoint.keep_every", "checkpoint.hf_interval"


def exports(c: Context) -> Iterator[Problem]:
    if not has_trainer(c.config.placement):
        return  # modes.py says so
    interval, steps = c.config.checkpoint.hf_interval, c.config.num_steps
    if interval is None:
        if c.changed("checkpoint.hf_keep"):
            yield inactive(c, "checkpoint.hf_keep", "counts exports that nobody makes", HF_INTERVAL)
        return
    at_end = c.config.checkpoint.hf_at_end
    if interval > steps or (interval == steps and at_end):
        end = ", which hf_at_end exports anyway" if at_end else ""
        summary = f"a run of {steps} steps has no step {interval} before its end{end}"
        hint = f"set {HF_INTERVAL} to {max(1, steps // 4)}, or to null"
        if steps == 1 and at_end:
            hint = f"set {HF_INTERVAL} to null"
        yield c.problem("hf-interval-longer-than-run", summary, HF_INTERVAL, "num_steps", hint=hint)


def kept_for_good(c: Context) -> Iterator[Problem]:
    """`keep_every` picks among steps that are saved, or it picks nothing."""
    if not has_trainer(c.config.placement):
        return
    k = c.config.checkpoint
    if k.keep_every is None:
        return
    exported = k.hf_interval if k.hf_keep is not None else None
    if k.interval is None and exported is None:
        why = "picks among checkpoints, and only the last step is saved"
        yield inactive(c, KEEP_EVERY, why, "checkpoint.interval")
    for key, interval in (("checkpoint.interval", k.interval), (HF_INTERVAL, exported)):
        if interval is not None and k.keep_every % interval:
            below = k.keep_every // interval * interval
            choice = f"{below} or {below + interval}" if below else f"{interval}"
            summary = f"nothing is saved at step {k.keep_every}, which would be kept: saves come every {interval} steps"
            hint = f"set {KEEP_EVERY} to {choice}"
            yield c.problem("keep-every-between-saves", summary, KEEP_EVERY, key, hint=hint)


def beside_training(c: Context) -> Iterator[Problem]:
    if has_trainer(c.config.placement) and c.config.checkpoint.async_save and c.config.checkpoint.interval is None:
        why = "writes beside the training, and the only checkpoint comes at its end"
        yield inactive(c, "checkpoint.async_save", why, "checkpoint.interval")


RULES = (exports, kept_for_good, beside_training)
