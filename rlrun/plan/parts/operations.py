"""Data, reward, evaluation, checkpoints, tracking and deadlines, decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DatasetPlan:
    path: str  # absolute
    prompt_key: str
    label_key: str | None  # None: nobody asks for a label
    num_rows: int
    response_key: str | None = None  # with sft


@dataclass(frozen=True)
class DataPlan:
    train: DatasetPlan
    eval: DatasetPlan | None
    shuffle: bool
    system_prompt: str | None


@dataclass(frozen=True)
class RewardPlan:
    function: str
    arguments: dict[str, Any]
    timeout_s: float
    key: str | None = None
    postprocess: str | None = None


@dataclass(frozen=True)
class EvalPlan:
    interval: int
    before_train: bool
    samples_per_prompt: int
    temperature: float
    max_prompts: int | None
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class CheckpointPlan:
    interval: int | None
    keep: int
    hf_at_end: bool
    digest: bool
    gather: str = "gpu"  # gpu | host
    keep_every: int | None = None
    async_save: bool = False
    hf_interval: int | None = None
    hf_keep: int | None = None  # None: all


@dataclass(frozen=True)
class TrackingPlan:
    uri: str
    experiment: str


@dataclass(frozen=True)
class TimeoutsPlan:
    start_s: float
    generate_s: float
    train_s: float
    sync_s: float
    save_s: float
