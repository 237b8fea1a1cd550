"""The critic of PPO: a second network that predicts the return of every token, trained on the policy's slots."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlrun.config.sections.base import NonNegative, NotEmpty, Section


class CriticConfig(Section):
    """The critic, used with `algo.advantage: gae` only. It has the policy's architecture with a scalar head instead of
    the output projection, lives in the trainer's processes and has the trainer's parallel sizes and batches."""

    path: NotEmpty | None = None
    """Folder of a Hugging Face checkpoint that the critic starts from, of the policy's architecture, for example a
    reward model (a `score.weight` in it becomes the value head). Null: the policy's own initial weights."""
    lr: Annotated[float, Field(gt=0, le=1)] | None = None
    """Peak learning rate of the critic's AdamW. Null: ten times algo.lr."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up, over all optimizer steps of the run."""
    lr_warmup_steps: NonNegative = 0
    """Optimizer steps of the critic's linear warm-up."""
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
    """Largest global norm of the critic's gradient; 0 turns clipping off."""
    value_clip: Annotated[float, Field(gt=0)] | None = 0.2
    """The loss holds a value within this distance of the one before the update; null does not."""
    critic_only_steps: NonNegative = 0
    """Steps at the beginning in which only the critic learns, so that the policy never follows an untrained one."""
