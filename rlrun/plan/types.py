"""What was decided. Frozen, fully resolved, nothing optional that a reader would have to derive; the runtime reads
only this. Built by `rlrun.plan.build`, drawn by `rlrun.plan.render`, never changed afterwards. No heavy imports: a plan
is pickled into every Ray actor and written to the run folder as JSON. The parts are in `rlrun.plan.parts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlrun.plan.parts.critic import CriticPlan
from rlrun.plan.parts.memory import (
    HostMemory,
    KvPlan,
    MemoryPlan,
    MemoryTerm,
    PhaseMemory,
)
from rlrun.plan.parts.model import (
    IndexerSpec,
    LinearAttentionSpec,
    MlaSpec,
    ModelPlan,
    ModelSpec,
    MoeSpec,
)
from rlrun.plan.parts.operations import (
    CheckpointPlan,
    DataPlan,
    DatasetPlan,
    EvalPlan,
    RewardPlan,
    TimeoutsPlan,
    TrackingPlan,
)
from rlrun.plan.parts.rollout import (
    SYNCHRONOUS,
    AsyncPlan,
    DeploymentPlan,
    EnginePlan,
    ExternalPlan,
    GroupPlan,
    ReservedPlan,
    RolloutPlan,
    RouterPlan,
    ServedModelPlan,
    SyncPlan,
)
from rlrun.plan.parts.sampling import OverlongPlan, SamplingPlan
from rlrun.plan.parts.time import PhaseTime, TimePlan
from rlrun.plan.parts.train import (
    AlgoPlan,
    BatchPlan,
    OptimizerPlan,
    Slot,
    TeacherPlan,
    TrainPlan,
)


@dataclass(frozen=True)
class ChangedValue:
    """A value away from the schema's default, and who set it."""

    key: str
    default: Any
    value: Any
    origin: str


@dataclass(frozen=True)
class RunPlan:
    name: str
    experiment: str | None
    seed: int
    num_steps: int
    stop_after: int | None
    output_dir: str  # absolute
    config_hash: str  # 12 hex digits, semantic fields only
    device: str  # cpu | cuda
    num_nodes: int
    gpus_per_node: int
    placement_mode: str  # colocated | disaggregated | train_only | rollout_only
    slots: tuple[Slot, ...]
    max_staleness: int
    model: ModelPlan
    train: TrainPlan
    algo: AlgoPlan
    batch: BatchPlan
    engines: tuple[EnginePlan, ...]  # none when train_only
    router: RouterPlan | None  # of the policy
    rollout: RolloutPlan
    data: DataPlan
    reward: RewardPlan | None  # None with sft
    sync: SyncPlan | None  # None without a trainer or without engines
    eval: EvalPlan | None
    checkpoint: CheckpointPlan
    tracking: TrackingPlan | None
    timeouts: TimeoutsPlan
    changed: tuple[ChangedValue, ...]
    resolved_config: dict[str, Any]
    memory: MemoryPlan | None = None  # on cuda, with trainer and engines
    sampling: SamplingPlan = field(default_factory=SamplingPlan)
    critic: CriticPlan | None = None  # with gae
    deployment: DeploymentPlan = field(default_factory=DeploymentPlan)
    async_mode: AsyncPlan = SYNCHRONOUS
    time: TimePlan | None = None  # on cuda
    twin: str | None = None  # name of the experiment of which this is the CPU twin


__all__ = [
    "AlgoPlan",
    "AsyncPlan",
    "BatchPlan",
    "ChangedValue",
    "CheckpointPlan",
    "CriticPlan",
    "DataPlan",
    "DatasetPlan",
    "DeploymentPlan",
    "EnginePlan",
    "EvalPlan",
    "ExternalPlan",
    "GroupPlan",
    "HostMemory",
    "IndexerSpec",
    "KvPlan",
    "LinearAttentionSpec",
    "MemoryPlan",
    "MemoryTerm",
    "MlaSpec",
    "ModelPlan",
    "ModelSpec",
    "MoeSpec",
    "OptimizerPlan",
    "OverlongPlan",
    "PhaseMemory",
    "PhaseTime",
    "ReservedPlan",
    "RewardPlan",
    "RolloutPlan",
    "RouterPlan",
    "RunPlan",
    "SamplingPlan",
    "ServedModelPlan",
    "Slot",
    "SyncPlan",
    "TeacherPlan",
    "TimePlan",
    "TimeoutsPlan",
    "TrackingPlan",
    "TrainPlan",
]
