"""Algorithm: advantage, loss, optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlrun.config.sections.base import NOT_SEMANTIC, NonNegative, Positive, Section


class AlgoConfig(Section):
    name: str = Field(json_schema_extra=NOT_SEMANTIC)
    """Label used in reports."""
    advantage: Literal["grpo", "gae"] = "grpo"
    """Advantage estimator. grpo: reward minus the group's mean, optionally over its standard deviation. gae: generalized
    advantage estimation over the values of a critic (PPO), whitened over all tokens of the step."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount of a reward for each further token of the policy."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """gae only. 1: advantage = return - value, unbiased; smaller trusts the critic more, with less variance."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation (false is Dr.GRPO)."""
    group_size: Positive = 8
    """Samples drawn for each prompt."""
    prompts_per_rollout: Positive = 64
    """Prompts drawn for each step of the loop."""
    groups_per_step: Positive = 64
    """Prompt groups in one optimizer step; divides prompts_per_rollout."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """The policy ratio is clipped above at 1 + clip_high."""
    loss_aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Weight of a token in the loss: the same for every token, or the same for every sample."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL penalty to the reference model (the initial weights) in the loss; 0 loads no reference."""
    kl_reward_coef: Annotated[float, Field(ge=0)] = 0.0
    """gae only. Weight of a KL penalty to the reference model that is taken off the reward of every token."""
    kl_estimator: Literal["k1", "k2", "k3", "low_var"] = "low_var"
    """Estimator of that KL, from the sampled tokens. low_var is k3 clamped to [-10, 10]."""
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
