"""How weights reach the engines, and how far generation may run ahead."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlrun.config.sections.base import NOT_SEMANTIC, Positive, Section


class WeightSyncConfig(Section):
    transport: Literal["tensor", "distributed"] = "tensor"
    """tensor: handed to the engine on the same slot (by value on cpu, CUDA IPC on cuda), colocated only.
    distributed: a gloo or NCCL group of trainer rank 0 and every engine."""
    bucket_mb: Positive = 512
    """Size of one transfer in MiB."""
    verify: Literal["version", "canary"] = "version"
    """After each sync: read the version back from every engine; canary also compares log-probs on a fixed text."""


class AsyncModeConfig(Section):
    name: Literal["sync"] = Field(default="sync", json_schema_extra=NOT_SEMANTIC)
    """Label used in reports."""
    max_staleness: Annotated[int, Field(ge=0, le=0)] = 0
    """Largest trainer version minus sample version that is trained on; 0 is synchronous."""
