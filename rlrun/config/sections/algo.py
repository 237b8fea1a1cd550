"""Algorithm: advantage, loss, optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlrun.config.sections.base import NOT_SEMANTIC, NonNegative, NotEmpty, Positive, Section, one_of_ours_or_a_path

ADVANTAGES = ("grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae")
LOSSES = ("ppo_clip", "gspo", "cispo", "sft")

Coefficient = Annotated[float, Field(ge=0)]


class ImportanceConfig(Section):
    """Correction of the gap between engine and trainer, which give the same tokens slightly different probabilities.
    With w = exp(old_logprobs - rollout_logprobs): how far the trainer's policy, before the update, is from the one that
    sampled. Tokens that are dropped still count in the loss's denominator."""

    correction: Literal["none", "tis", "icepop", "mask"] = "none"
    """tis multiplies the policy loss by w clamped to low..high; icepop by w, and by 0 outside low..high; mask by 1, and
    by 0 outside."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """w of each token, of the whole sequence (the product over its tokens), or the geometric mean of that product."""
    low: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lower bound of w."""
    high: Annotated[float, Field(gt=1)] = 2.0
    """Upper bound of w."""
    veto: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Drop every sequence with a token whose own w is below this, e.g. 1e-4; null drops none."""


class AlgoConfig(Section):
    name: str = Field(json_schema_extra=NOT_SEMANTIC)
    """Label used in reports."""
    advantage: Annotated[str, Field(pattern=one_of_ours_or_a_path(*ADVANTAGES))] = "grpo"
    """Advantage estimator. grpo: reward minus the group's mean, optionally over its standard deviation. rloo: minus the
    mean of the other samples. reinforce_plus_plus: the return from each token on, without groups.
    reinforce_plus_plus_baseline: reward minus the group's mean, minus the KL of each token. gae: generalized advantage
    estimation over the values of a critic (PPO).
    Or a function f(scored) -> one number a sample, or one array a sample
    (rlrun.algos.advantages.Scored)."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation (false is Dr.GRPO). grpo only."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount of a reward for each token that lies before it. reinforce_plus_plus and gae only."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """1: advantage = return - value, unbiased; smaller trusts the critic more, with less variance. gae only."""
    whiten_advantages: bool = False
    """Shift and scale the advantages of all tokens of a rollout to mean 0 and variance 1."""
    group_size: Positive = 8
    """Samples drawn for each prompt."""
    prompts_per_rollout: Positive = 64
    """Prompts (sft: rows of the data) drawn for each step of the loop."""
    groups_per_step: Positive | None = 64
    """Prompt groups in one optimizer step; divides prompts_per_rollout. null: one step on all groups of the rollout
    that were kept, however many those are (dynamic_sampling)."""
    loss: Annotated[str, Field(pattern=one_of_ours_or_a_path(*LOSSES))] = "ppo_clip"
    """Policy loss. ppo_clip: the clipped ratio of each token. gspo: the ratio of the sequence, the geometric mean over
    its tokens. cispo: log-prob times the clipped ratio, whose gradient is stopped. Or a function
    f(tokens, options) -> [N] (rlrun.algos.losses.Tokens). sft: no policy loss but the negative log-likelihood of given
    responses, data.train.response_key, without engines and rewards (placement.mode train_only)."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The policy ratio is clipped below at 1 - clip_low; 1 clips nothing below."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """The policy ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Where the advantage is negative, the loss of a token is at most dual_clip times its size, e.g. 3.0; null bounds
    nothing."""
    entropy_coef: Coefficient = 0.0
    """Weight of an entropy bonus in the loss."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "rollout_mean", "constant"] = "token_mean"
    """Weight of a token in the loss. token_mean: the same for every token of the optimizer step. sequence_mean: the
    same for every sample. rollout_mean: the same for every rollout, whose samples are one (an agent may return
    several). constant: each rollout's sum over loss_constant tokens (Dr.GRPO)."""
    loss_constant: Positive | None = None
    """Tokens that loss_aggregation=constant divides a rollout's sum by; null takes rollout.max_response_tokens."""
    kl_coef: Coefficient = 0.0
    """Weight of the KL penalty to the reference model in the loss; 0 loads no reference for it."""
    kl_reward_coef: Coefficient = 0.0
    """Weight of the KL penalty to the reference model in the rewards, before the advantages; not together with kl_coef.
    By token for gae and the reinforce_plus_plus estimators, summed over the sample for grpo and rloo."""
    kl_estimator: Literal["k1", "k2", "k3", "low_var"] = "low_var"
    """Estimator of either KL, from the sampled tokens. low_var is k3 clamped to [-10, 10]."""
    kl_unbiased: bool = False
    """Multiply the KL in the loss by the policy ratio, which makes its gradient that of the exact KL when old and new
    policy differ."""
    reference_path: NotEmpty | None = None
    """Local folder of the reference model, of the same architecture; null takes the initial weights."""
    old_logprobs: Literal["trainer", "rollout"] = "trainer"
    """Whose log-probs stand under the policy ratio: the trainer's own before the update, or those the engine sampled
    with (one forward pass less; the ratio then holds the gap between the two)."""
    importance: ImportanceConfig = ImportanceConfig()
    opsm_delta: Annotated[float, Field(gt=0)] | None = None
    """Off-policy sequence masking: drop samples with a negative advantage whose mean of old - new log-probs is above
    this, e.g. 1e-4; null drops none."""
    opd_coef: Coefficient = 0.0
    """On-policy distillation: subtract opd_coef * (old_logprobs - teacher's log-probs) from each token's advantage."""
    teacher_path: NotEmpty | None = None
    """Local folder of the distillation teacher: the same family and vocabulary, of any size."""
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up, over all optimizer steps of the run."""
    lr_warmup_steps: NonNegative = 0
    """Optimizer steps of linear warm-up."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Floor of a decaying schedule."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW weight decay (not applied to norms and biases)."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW beta 1."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """AdamW beta 2."""
    adam_eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW epsilon."""
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """Largest global gradient norm; 0 turns clipping off."""
