"""The trainer, decided: slots, parallel sizes, optimizer, loss, batch arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


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
class AlgoPlan:
    name: str
    advantage: str
    normalize_by_std: bool
    clip_low: float
    clip_high: float
    loss_aggregation: str  # token_mean | sequence_mean
    kl_coef: float
    kl_estimator: str
    uses_reference: bool
    optimizer: OptimizerPlan


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
