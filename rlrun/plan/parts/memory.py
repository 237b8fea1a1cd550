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

    phase: str  # train | logprob | rollout | sync
    verdict: str  # fits | tight | does not fit
    total_bytes: int
    terms: tuple[MemoryTerm, ...]


@dataclass(frozen=True)
class KvPlan:
    """The KV cache of one engine."""

    tokens: int
    bytes_per_token: int  # on one GPU
    samples: int  # of full length, at once


@dataclass(frozen=True)
class MemoryPlan:
    """Estimated GPU memory, worst pipeline stage; see `rlrun.plan.memory`."""

    gpu: str
    gpu_bytes: int
    verdict: str
    phases: tuple[PhaseMemory, ...]
    kv: KvPlan
