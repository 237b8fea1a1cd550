"""Which GPUs do what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rlrun.config.sections.base import NonNegative, NotEmpty, Positive, Section

Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]


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


class ServerGroup(Section):
    """Engines of one kind. Groups take the rollout's GPUs one after the other, in the order of the list."""

    type: Literal["regular", "prefill", "decode", "placeholder", "encoder"]
    """regular: whole requests; prefill and decode: the two halves of a request, on engines of their own; encoder:
    images of a model that sees; placeholder: GPUs that are held and left alone."""
    gpus: Positive
    """GPUs of the group together."""
    name: Name | None = None
    """Name in plan, messages and logs; null is <model>-<type>."""
    model: Name = "policy"
    """What is served: policy, the model that is trained, or a name of rollout.models."""
    gpus_per_engine: Positive | None = None
    """GPUs of one engine; null is that of the model in rollout.models, or else placement.rollout.gpus_per_engine."""
    pp: Positive | None = None
    """Pipeline-parallel size of an engine; null is placement.rollout.pp for the policy, 1 for other models."""
    ep: Positive | None = None
    """Expert-parallel size of an engine; null is placement.rollout.ep for the policy, 1 for other models."""
    dp_attention: Positive | None = None
    """Data-parallel attention ranks; null is placement.rollout.dp_attention for the policy, 1 for other models."""
    sglang: dict[str, Any] = Field(default={})
    """Keys of rollout.sglang with other values for the engines of this group."""


class ExternalEngine(Section):
    """An SGLang server that somebody else started. It is attached, never stopped, and uses none of the run's GPUs; one
    on the run's own nodes has its GPUs in placement.reserved."""

    url: NotEmpty
    """Its address, http://host:port."""
    model: Name = "policy"
    """What it serves: policy, or a name of rollout.models."""


class RolloutPlacement(Section):
    gpus: Positive = 8
    """GPUs of the engines together (slots on cpu). With server_groups it has to be their sum."""
    gpus_per_engine: Positive = 1
    """GPUs of one engine: its tensor-parallel times its pipeline-parallel size."""
    pp: Positive = 1
    """Pipeline-parallel size of an engine; has to divide gpus_per_engine, and the rest is tensor-parallel."""
    ep: Positive = 1
    """Expert-parallel size of an engine, for a mixture-of-experts model; has to divide its tensor-parallel size."""
    dp_attention: Positive = 1
    """Data-parallel ranks of an engine's attention; has to divide its tensor-parallel size. 1 switches it off."""
    server_groups: list[ServerGroup] = Field(default=[])
    """Engines of several kinds or models. Empty: one group of regular engines of the policy."""
    external: list[ExternalEngine] = Field(default=[])
    """Servers that run already and are attached."""


class ReservedGpus(Section):
    """GPUs of a node that something else uses; the run's slots are on the others."""

    node: NonNegative
    """Number of the node, from 0."""
    gpus: Annotated[list[NonNegative], Field(min_length=1)]
    """Their numbers on the node."""
    what: NotEmpty
    """What uses them, for the plan and for messages."""


class PlacementConfig(Section):
    name: str
    """Label used in reports."""
    device: Literal["cpu", "cuda"] = "cuda"
    """cpu runs the same engines with gloo and float32; a slot is then a process."""
    num_nodes: Positive = 1
    """Machines."""
    gpus_per_node: Positive = 8
    """GPUs of one machine (slots on cpu)."""
    gpu: Literal["a100_40gb", "a100_80gb", "h100_80gb", "h200_141gb"] = "h100_80gb"
    """Kind of GPU, for its memory; cuda only."""
    host_memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Host memory of a node in GiB, to check that saving a checkpoint fits; null checks nothing. cuda only."""
    cpus_per_node: Positive | None = None
    """CPU cores of a node, to check that each process has one; null checks nothing. cuda only."""
    mode: Literal["colocated", "disaggregated", "train_only", "rollout_only"] = "colocated"
    """colocated: trainer and engines share slots and take turns; disaggregated: each has its own; train_only: no
    engines; rollout_only: no trainer, evaluation only."""
    trainer: TrainerPlacement = TrainerPlacement()
    rollout: RolloutPlacement = RolloutPlacement()
    reserved: list[ReservedGpus] = Field(default=[])
    """GPUs that something else uses, such as a judge's server; cuda only."""
    trainer_threads: Positive = 1
    """torch threads of one trainer process; cpu only."""
    engine_threads: Positive = 1
    """OMP threads of one engine; cpu only."""
