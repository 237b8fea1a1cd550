"""The critic of PPO: keys that would do nothing without one, its learning rate, and the folder it starts from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.errors import Problem, RlrunError
from rlrun.plan.context import Context
from rlrun.plan.model_spec import read_architecture
from rlrun.plan.rules.algo import optimizer_steps

LR_FACTOR = 10.0
"""A critic's default learning rate over the policy's: its head is new, and it has no trust region to stay in."""

NOT_SHARED = ("vocab_size", "tie_word_embeddings", "max_position_embeddings")
"""Fields of the architecture in which a critic's checkpoint may differ from the policy's without being another trunk:
a reward model has no output layer. The vocabulary must be the same, and is checked with the weights' shapes."""


def has_critic(c: Context) -> bool:
    return c.config.algo.advantage == "gae"


def critic_lr(c: Context) -> float:
    """What `critic.lr` means."""
    lr = c.config.critic.lr
    return float(lr) if lr is not None else min(1.0, LR_FACTOR * c.config.algo.lr)


def critic_only_optimizer_steps(c: Context) -> int:
    """Optimizer steps at the beginning that the policy sits out."""
    if not has_critic(c):
        return 0
    return c.config.critic.critic_only_steps * (optimizer_steps(c) // c.config.num_steps)


def inactive(c: Context) -> Iterator[Problem]:
    """Without a critic its keys do nothing."""
    if has_critic(c):
        return
    ours = [key.path for key in all_keys().values() if key.path.startswith("critic.")]
    for key in (*ours, "algo.gae_lambda"):
        if c.changed(key):
            summary = f"{key} needs values of a critic, and advantage {c.config.algo.advantage} has none"
            hint = f"set {key} to {show(all_keys()[key].default)}, or algo.advantage to gae"
            yield c.problem("inactive-key", summary, key, "algo.advantage", hint=hint)


def learning_rate(c: Context) -> Iterator[Problem]:
    if not has_critic(c):
        return
    k, lr, total = c.config.critic, critic_lr(c), optimizer_steps(c)
    if k.min_lr > lr:
        summary = f"the critic's learning rate cannot decay from {lr:g} to {k.min_lr:g}"
        keys = ("critic.min_lr", "critic.lr", "algo.lr")
        yield c.problem("min-lr-above-lr", summary, *keys, hint=f"set critic.min_lr to {lr / 10:g} or less")
    if k.lr_schedule == "constant" and k.min_lr > 0:
        summary = "critic.min_lr is the floor of a decaying learning rate"
        hint = "set critic.min_lr to 0.0, or critic.lr_schedule to linear"
        yield c.problem("inactive-key", summary, "critic.min_lr", "critic.lr_schedule", hint=hint)
    if k.lr_warmup_steps > total:
        summary = f"{k.lr_warmup_steps} warm-up steps do not fit into the critic's {total} optimizer steps"
        hint = f"set critic.lr_warmup_steps to {total // 10}, at most {total}"
        yield c.problem("warmup-longer-than-run", summary, "critic.lr_warmup_steps", "num_steps", hint=hint)


def policy_warmup(c: Context) -> Iterator[Problem]:
    """The policy has fewer optimizer steps than the run when the critic begins alone."""
    warmup, total = c.config.algo.lr_warmup_steps, optimizer_steps(c)
    left = total - critic_only_optimizer_steps(c)
    if 0 < left < warmup <= total:
        summary = f"{warmup} warm-up steps do not fit into the {left} optimizer steps that the critic leaves the policy"
        keys = ("algo.lr_warmup_steps", "critic.critic_only_steps", "num_steps")
        hint = f"set algo.lr_warmup_steps to {left // 10}, at most {left}"
        yield c.problem("warmup-longer-than-run", summary, *keys, hint=hint)


def critic_only(c: Context) -> Iterator[Problem]:
    if not has_critic(c):
        return
    alone, steps = c.config.critic.critic_only_steps, c.config.num_steps
    if alone >= steps:
        summary = f"only the critic learns in the first {alone} steps, and the run has {steps}: the policy never does"
        keys = ("critic.critic_only_steps", "num_steps")
        hint = f"set critic.critic_only_steps to {steps // 10}, at most {steps - 1}"
        yield c.problem("critic-only-run", summary, *keys, hint=hint)


def checkpoint(c: Context) -> Iterator[Problem]:
    """A folder with weights, whose trunk is the policy's."""
    if not has_critic(c) or c.critic_dir is None:
        return
    try:
        found = read_architecture(c.critic_dir, c.config.model.family)
    except RlrunError as e:
        for p in e.problems:
            yield c.problem(
                p.code, p.summary, "critic.path", hint="set critic.path to null, or to a checkpoint's folder"
            )
        return
    policy = c.expected if c.model_dir is None else c.found
    differ = [k for k in found if k not in NOT_SHARED and found[k] != policy[k]]
    if differ:
        said = ", ".join(f"{k} {found[k]} (not {policy[k]})" for k in differ)
        summary = f"the critic's config.json in {os.path.basename(c.critic_dir)} has {said}"
        hint = "set critic.path to null, or to a checkpoint of the policy's architecture"
        yield c.problem("architecture-mismatch", summary, "critic.path", "model.family", hint=hint)
    elif not any(Path(c.critic_dir).glob("*.safetensors")):
        summary = f"{c.critic_dir} lacks *.safetensors"
        hint = "set critic.path to null, or download the whole checkpoint into that folder"
        yield c.problem("model-incomplete", summary, "critic.path", hint=hint)


RULES = (inactive, learning_rate, policy_warmup, critic_only, checkpoint)
