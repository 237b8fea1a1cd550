"""The critic of PPO: there is one when the advantages are estimated with values."""

from __future__ import annotations

from rlrun.plan.context import Context
from rlrun.plan.parts.critic import CriticPlan
from rlrun.plan.parts.train import OptimizerPlan
from rlrun.plan.rules.algo import optimizer_steps
from rlrun.plan.rules.critic import critic_lr, has_critic


def critic_plan(c: Context) -> CriticPlan | None:
    if not has_critic(c):
        return None
    k = c.config.critic
    optimizer = OptimizerPlan(
        lr=critic_lr(c),
        min_lr=float(k.min_lr),
        schedule=k.lr_schedule,
        warmup_steps=k.lr_warmup_steps,
        total_steps=optimizer_steps(c),
        weight_decay=float(k.weight_decay),
        beta1=float(k.adam_beta1),
        beta2=float(k.adam_beta2),
        eps=float(k.adam_eps),
        clip_grad=float(k.clip_grad),
    )
    return CriticPlan(
        path=c.critic_dir,
        value_clip=None if k.value_clip is None else float(k.value_clip),
        critic_only_steps=k.critic_only_steps,
        optimizer=optimizer,
    )
