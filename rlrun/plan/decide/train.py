"""The trainer: slots, parallel sizes, optimizer, loss and batch arithmetic."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.plan import placement
from rlrun.plan.context import Context
from rlrun.plan.parts.train import AlgoPlan, BatchPlan, OptimizerPlan, TrainPlan
from rlrun.plan.rules.algo import optimizer_steps


def train_plan(config: RunConfig) -> TrainPlan:
    p, t = config.placement, config.trainer
    return TrainPlan(
        slots=placement.trainer_slots(p),
        tp=p.trainer.tp,
        pp=p.trainer.pp,
        cp=p.trainer.cp,
        dp=placement.data_parallel(p),
        backend={"cpu": "gloo", "cuda": "nccl"}[p.device],
        threads=p.trainer_threads,
        batching=t.batching,
        max_tokens_per_gpu=t.max_tokens_per_gpu,
        micro_batch_size=t.micro_batch_size,
        recompute=t.recompute,
        sequence_parallel=t.sequence_parallel,
        distributed_optimizer=t.distributed_optimizer,
        ep=p.trainer.ep,
    )


def algo_plan(c: Context) -> AlgoPlan:
    a = c.config.algo
    optimizer = OptimizerPlan(
        lr=float(a.lr),
        min_lr=float(a.min_lr),
        schedule=a.lr_schedule,
        warmup_steps=a.lr_warmup_steps,
        total_steps=optimizer_steps(c),
        weight_decay=float(a.weight_decay),
        beta1=float(a.adam_beta1),
        beta2=float(a.adam_beta2),
        eps=float(a.adam_eps),
        clip_grad=float(a.clip_grad),
    )
    return AlgoPlan(
        name=a.name,
        advantage=a.advantage,
        normalize_by_std=a.normalize_by_std,
        clip_low=float(a.clip_low),
        clip_high=float(a.clip_high),
        loss_aggregation=a.loss_aggregation,
        kl_coef=float(a.kl_coef),
        kl_estimator=a.kl_estimator,
        uses_reference=a.kl_coef > 0,
        optimizer=optimizer,
    )


def batch_plan(config: RunConfig) -> BatchPlan:
    a, dp = config.algo, placement.data_parallel(config.placement)
    samples_per_step = a.groups_per_step * a.group_size
    return BatchPlan(
        prompts_per_rollout=a.prompts_per_rollout,
        group_size=a.group_size,
        samples_per_rollout=a.prompts_per_rollout * a.group_size,
        groups_per_step=a.groups_per_step,
        samples_per_step=samples_per_step,
        optimizer_steps_per_rollout=a.prompts_per_rollout // a.groups_per_step,
        samples_per_rank=-(-samples_per_step // dp) if dp else 0,
    )
