"""Which GPUs do what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlrun.config.sections.base import Positive, Section


class TrainerPlacement(Section):
    gpus: Positive = 8
    """GPUs of the trainer (slots, one process each, on cpu)."""
    tp: Positive = 1
    """Tensor-parallel size."""
    pp: Positive = 1
    """Pipeline-parallel size."""
    cp: Positive = 1
    """Context-parallel size."""
    ep: Positive = 1
    """Expert-parallel size, in the plan of a mixture-of-experts model; nothing runs with it yet."""


class RolloutPlacement(Section):
    gpus: Positive = 8
    """GPUs of the engines together (slots on cpu)."""
    gpus_per_engine: Positive = 1
    """GPUs of one engine, its tensor-parallel size."""


class PlacementConfig(Section):
    name: str
    """Label used in reports."""
    device: Literal["cpu", "cuda"] = "cuda"
    """cpu runs the same engines with gloo and float32; a slot is then a process."""
    num_nodes: Positive = 1
    """Machines."""
    gpus_per_node: Positive = 8
    """GPUs of one machine (slots on cpu)."""
    gpu: Literal["a100_40gb", "a100_80gb", "h20_96gb", "h800_80gb", "h100_80gb", "h200_141gb", "b200_180gb"] = (
        "h100_80gb"
    )
    """Kind of GPU, for its memory and speed; cuda only. The figures are in rlrun/plan/hardware."""
    network_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    """What the network between nodes gives one GPU, in GB/s one way, for estimates of time; null takes that of
    rlrun/plan/hardware. cuda with several nodes only."""
    host_memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Host memory of a node in GiB, to check that saving a checkpoint fits; null checks nothing. cuda only."""
    mode: Literal["colocated", "disaggregated"] = "colocated"
    """colocated: trainer and engines share slots and take turns; disaggregated: each has its own."""
    trainer: TrainerPlacement = TrainerPlacement()
    rollout: RolloutPlacement = RolloutPlacement()
    trainer_threads: Positive = 1
    """torch threads of one trainer process; cpu only."""
    engine_threads: Positive = 1
    """OMP threads of one engine; cpu only."""
