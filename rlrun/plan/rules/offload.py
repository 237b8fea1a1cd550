"""Where the state of trainer and engines lives, and in which type: keys that do nothing or cannot go together."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.config.origin import show
from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.rules.algo import inactive

SHARDED = "trainer.distributed_optimizer"


def taking_turns(c: Context) -> Iterator[Problem]:
    mode = c.config.placement.mode
    alone = {"disaggregated": ("trainer", "engines"), "train_only": ("trainer",), "rollout_only": ("engines",)}
    for key, whose in (("trainer.offload", "trainer"), ("rollout.offload", "engines")):
        if c.changed(key) and whose in alone.get(mode, ()):
            yield inactive(c, key, f"empties GPUs that nobody but the {whose} would use", "placement.mode")


def sharded_optimizer(c: Context) -> Iterator[Problem]:
    """What only Megatron's distributed optimizer can do."""
    t = c.config.trainer
    if t.distributed_optimizer:
        return
    if c.config.placement.device == "cuda":
        for key in ("trainer.optimizer_offload", "trainer.optimizer_dtype"):
            if c.changed(key):
                summary = f"{key}: {show(c.value(key))} is a feature of the distributed optimizer, which is off"
                yield c.problem("optimizer-not-sharded", summary, key, SHARDED, hint=f"set {SHARDED} to true")
    if c.changed("checkpoint.gather"):
        yield inactive(c, "checkpoint.gather", "joins the shards of an optimizer that is not sharded", SHARDED)


def types_of_state(c: Context) -> Iterator[Problem]:
    m, t, device = c.config.model, c.config.trainer, c.config.placement.device
    dtype = {"cpu": "float32", "cuda": "bfloat16"}[device] if m.dtype == "auto" else m.dtype
    if t.grad_dtype == "bfloat16" and dtype == "float32":
        yield inactive(c, "trainer.grad_dtype", "is for bfloat16 weights, and these are float32", "model.dtype")
    if device == "cuda" and t.optimizer_offload and t.optimizer_dtype == "bfloat16":
        why = "is for moments on the GPU, and on the host they are float32"
        yield inactive(c, "trainer.optimizer_dtype", why, "trainer.optimizer_offload")


RULES = (taking_turns, sharded_optimizer, types_of_state)
