"""What a user may write, key by key. Unknown keys are refused, values are never coerced, and the docstring under a
field is its documentation (`rlrun explain`). The groups are in `rlrun.config.sections`; rules that span several keys
live in `rlrun.plan.checks`.

Imports nothing heavier than pydantic.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlrun.config.sections.algo import AlgoConfig
from rlrun.config.sections.base import NOT_SEMANTIC, NotEmpty, Positive, Section
from rlrun.config.sections.critic import CriticConfig
from rlrun.config.sections.data import DataConfig, DynamicSamplingConfig, EvalConfig, RewardConfig
from rlrun.config.sections.model import ModelConfig
from rlrun.config.sections.operations import CheckpointConfig, TimeoutsConfig, TrackingConfig
from rlrun.config.sections.placement import PlacementConfig
from rlrun.config.sections.rollout import RolloutConfig
from rlrun.config.sections.sync import AsyncModeConfig, WeightSyncConfig
from rlrun.config.sections.trainer import TrainerConfig


class RunConfig(Section):
    """A whole experiment."""

    name: str = Field(pattern=r"^\w[\w.-]*$", json_schema_extra=NOT_SEMANTIC)
    """Name of the experiment: folder, MLflow experiment."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1234
    """Seed of initial weights, data order, sampling and dropout."""
    num_steps: Positive = 100
    """Steps of the loop: generate, train, publish."""
    stop_after: Positive | None = Field(default=None, json_schema_extra=NOT_SEMANTIC)
    """Save and stop cleanly when this step is done; `rlrun resume` goes on."""
    output_dir: NotEmpty = Field(default="runs", json_schema_extra=NOT_SEMANTIC)
    """Folder of run folders: a run writes <output_dir>/<name>/<time>."""
    model: ModelConfig
    algo: AlgoConfig
    critic: CriticConfig = CriticConfig()
    rollout: RolloutConfig
    placement: PlacementConfig = Field(json_schema_extra=NOT_SEMANTIC)
    async_mode: AsyncModeConfig
    data: DataConfig
    reward: RewardConfig | None = None
    """What a sample is worth. Needed, unless algo.loss is sft, which rewards nothing."""
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    trainer: TrainerConfig = Field(default=TrainerConfig(), json_schema_extra=NOT_SEMANTIC)
    weight_sync: WeightSyncConfig = Field(default=WeightSyncConfig(), json_schema_extra=NOT_SEMANTIC)
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), json_schema_extra=NOT_SEMANTIC)
    tracking: TrackingConfig = Field(default=TrackingConfig(), json_schema_extra=NOT_SEMANTIC)
    timeouts: TimeoutsConfig = Field(default=TimeoutsConfig(), json_schema_extra=NOT_SEMANTIC)
