"""The trainer: slots, parallel sizes, optimizer, loss and batch arithmetic."""

from __future__ import annotations

from rlrun.algos.options import ImportanceOptions, LossOptions
from rlrun.config.schema import RunConfig
from rlrun.config.sections.algo import AlgoConfig
from rlrun.plan import batch, placement
from rlrun.plan.attention import attention_share
from rlrun.plan.context import Context, absolute, supervised
from rlrun.plan.decide.model import gdn_backend
from rlrun.plan.parameters import stage_sizes
from rlrun.plan.parts.model import ModelSpec
from rlrun.plan.parts.train import AlgoPlan, BatchPlan, OptimizerPlan, TeacherPlan, TrainPlan
from rlrun.plan.rules.algo import optimizer_steps
from rlrun.plan.rules.critic import critic_only_optimizer_steps
from rlrun.plan.rules.policy import one_step_a_rollout, uses_reference


def train_plan(config: RunConfig, spec: ModelSpec) -> TrainPlan:
    p, t = config.placement, config.trainer
    sizes = stage_sizes(spec.num_layers, p.trainer.pp, p.trainer.first_stage_layers, p.trainer.last_stage_layers)
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
        etp=p.trainer.etp,
        stage_layers=tuple(sizes),
        grad_dtype=t.grad_dtype,
        optimizer_dtype=t.optimizer_dtype,
        optimizer_offload=t.optimizer_offload,
        offload=t.offload,
        attention_share=attention_share(spec) if t.balance_by == "flops" else 0.0,
        gdn_backend=gdn_backend(config),
        megatron=tuple(t.megatron.engine_arguments.items()),
    )


def algo_plan(c: Context) -> AlgoPlan:
    a = c.config.algo
    optimizer = OptimizerPlan(
        lr=float(a.lr),
        min_lr=float(a.min_lr),
        schedule=a.lr_schedule,
        warmup_steps=a.lr_warmup_steps,
        total_steps=optimizer_steps(c) - critic_only_optimizer_steps(c),
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
        loss_aggregation=a.loss_aggregation,
        loss=_loss_options(a),
        uses_reference=uses_reference(a),
        optimizer=optimizer,
        gamma=float(a.gamma),
        gae_lambda=float(a.gae_lambda),
        whiten_advantages=a.whiten_advantages,
        kl_reward_coef=float(a.kl_reward_coef),
        opd_coef=float(a.opd_coef),
        old_logprobs=old_logprobs(a),
        reference_path=absolute(a.reference_path) if a.reference_path is not None else None,
        teacher=TeacherPlan(absolute(a.teacher_path), c.teacher) if a.teacher_path is not None else None,
        loss_constant=(a.loss_constant or c.config.rollout.max_response_tokens)
        if a.loss_aggregation == "constant"
        else None,
    )


def _loss_options(a: AlgoConfig) -> LossOptions:
    i = a.importance
    corrects = i.correction != "none" or i.veto is not None
    return LossOptions(
        kind=a.loss,
        clip_low=float(a.clip_low),
        clip_high=float(a.clip_high),
        dual_clip=a.dual_clip if a.dual_clip is None else float(a.dual_clip),
        entropy_coef=float(a.entropy_coef),
        kl_coef=float(a.kl_coef),
        kl_estimator=a.kl_estimator,
        kl_unbiased=a.kl_unbiased,
        importance=ImportanceOptions(i.correction, i.level, float(i.low), float(i.high), i.veto) if corrects else None,
        opsm_delta=a.opsm_delta if a.opsm_delta is None else float(a.opsm_delta),
    )


def old_logprobs(a: AlgoConfig) -> str:
    """The trainer's pass before the update is left out where it would give what the update's own forward pass gives:
    with a single optimizer step, and nothing that needs the values before it. Supervised learning has no old policy."""
    if supervised(a):
        return "current"
    needed_before = a.kl_reward_coef > 0 or a.opd_coef > 0
    if a.old_logprobs == "trainer" and one_step_a_rollout(a) and not needed_before:
        return "current"
    return a.old_logprobs


def batch_plan(config: RunConfig) -> BatchPlan:
    a, dp = config.algo, placement.data_parallel(config.placement)
    groups, variable = batch.largest_step(config), a.groups_per_step is None
    samples_per_step = groups * a.group_size
    return BatchPlan(
        prompts_per_rollout=a.prompts_per_rollout,
        group_size=a.group_size,
        samples_per_rollout=(groups if variable else a.prompts_per_rollout) * a.group_size,
        groups_per_step=groups,
        samples_per_step=samples_per_step,
        optimizer_steps_per_rollout=batch.steps_per_rollout(config),
        samples_per_rank=-(-samples_per_step // dp) if dp else 0,
        variable=variable,
        first_draw=batch.first_draw(config),
    )
