"""The trainer, decided: slots, parallel sizes, optimizer, loss, batch arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlrun.algos.options import LossOptions
from rlrun.plan.parts.model import ModelSpec


@dataclass(frozen=True)
class Slot:
    """One GPU (one process on cpu) by its logical number, which counts the GPUs that the run may use node by node."""

    index: int
    node: int
    gpu: int


@dataclass(frozen=True)
class TrainPlan:
    """The Megatron side. Rank r lives on slots[r]. Ranks are laid out as Megatron does: tp fastest, then cp, dp, pp."""

    slots: tuple[int, ...]
    tp: int
    pp: int
    cp: int
    dp: int
    backend: str  # gloo | nccl
    threads: int
    batching: str  # packed | padded
    max_tokens_per_gpu: int | None
    micro_batch_size: int | None
    recompute: str  # none | full
    sequence_parallel: bool
    distributed_optimizer: bool
    ep: int = 1
    etp: int = 1
    stage_layers: tuple[int, ...] = ()  # layers of each pipeline stage; empty: equal parts
    grad_dtype: str = "float32"
    optimizer_dtype: str = "float32"
    optimizer_offload: bool = False
    offload: bool = False
    attention_share: float = 0.0  # a sample of T tokens is T + this * T^2 work; 0 balances tokens
    gdn_backend: str = "torch"  # fla | flashqla | torch | auto (fla where the trainer's nodes have it, else torch)
    megatron: tuple[tuple[str, Any], ...] = ()  # further arguments of megatron-core, by their names there


@dataclass(frozen=True)
class OptimizerPlan:
    lr: float
    min_lr: float
    schedule: str  # constant | linear | cosine
    warmup_steps: int
    total_steps: int  # optimizer steps of the whole run
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    clip_grad: float


@dataclass(frozen=True)
class TeacherPlan:
    """A frozen model that the trainer holds for on-policy distillation."""

    path: str  # absolute
    spec: ModelSpec


@dataclass(frozen=True)
class AlgoPlan:
    name: str
    advantage: str
    normalize_by_std: bool
    loss_aggregation: str  # token_mean | sequence_mean | rollout_mean | constant
    loss: LossOptions
    uses_reference: bool
    optimizer: OptimizerPlan
    gamma: float = 1.0
    gae_lambda: float = 1.0
    whiten_advantages: bool = False
    kl_reward_coef: float = 0.0
    opd_coef: float = 0.0
    old_logprobs: str = (
        "trainer"  # trainer (a forward pass) | rollout (the engine's) | current (those of the step itself)
    )
    reference_path: str | None = None  # absolute; None when it is the initial weights, or there is none
    teacher: TeacherPlan | None = None
    loss_constant: int | None = None  # tokens, for loss_aggregation constant

    @property
    def supervised(self) -> bool:
        """Whether given responses are learned: nothing is generated, rewarded or compared."""
        return self.loss.kind == "sft"


@dataclass(frozen=True)
class BatchPlan:
    """Batch arithmetic of one step of the loop."""

    prompts_per_rollout: int
    group_size: int
    samples_per_rollout: int
    groups_per_step: int
    samples_per_step: int
    optimizer_steps_per_rollout: int
    samples_per_rank: int  # of one optimizer step, when it divides evenly; else the largest share
    variable: bool = False  # one step on all groups that were kept; the numbers are then the largest possible
    first_draw: int = 0  # prompts generated before any refill
