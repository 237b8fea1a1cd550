"""What the phases of a run take, estimated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryTerm:
    name: str
    num_bytes: int


@dataclass(frozen=True)
class PhaseMemory:
    """What one GPU holds at the worst moment of a phase."""

    phase: str  # train | logprob | save | rollout | sync, or wake-up where engines come back for it
    verdict: str  # fits | tight | does not fit
    total_bytes: int
    terms: tuple[MemoryTerm, ...]


@dataclass(frozen=True)
class KvPlan:
    """The KV cache of one engine."""

    tokens: int
    bytes_per_token: int  # on one GPU
    samples: int  # of full length, at once
    max_running: int  # requests it may decode together
    state_bytes: int  # recurrent states of that many, on one GPU


@dataclass(frozen=True)
class HostMemory:
    """What a node's host memory holds at the worst moment."""

    moment: str  # rollout | save
    total_bytes: int
    node_bytes: int | None  # what a node has, where the configuration says so
    terms: tuple[MemoryTerm, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """Estimated GPU memory, worst pipeline stage; see `rlrun.plan.memory`."""

    gpu: str
    gpu_bytes: int
    verdict: str
    phases: tuple[PhaseMemory, ...]
    kv: KvPlan
    host: HostMemory
    whole_logits_bytes: int  # of a micro-batch, were they not made in pieces
    state_bytes_per_parameter: int  # of weights, gradients and optimizer, on the GPU
