"""The engines, decided, and the weights they get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EnginePlan:
    """One SGLang server."""

    index: int
    slots: tuple[int, ...]
    tp: int
    port: int | None  # None: a free one is picked at start
    dist_port: int | None
    threads: int
    attention_backend: str
    mem_fraction_static: float | None
    max_total_tokens: int | None
    max_running_requests: int
    cuda_graph: bool
    log_level: str
    seeded: bool
    context_length: int
    extra: tuple[tuple[str, Any], ...] = ()  # further arguments of SGLang, by their names there


@dataclass(frozen=True)
class RouterPlan:
    policy: str
    port: int | None


@dataclass(frozen=True)
class RolloutPlan:
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float
    stop: tuple[str, ...]
    seeded: bool
    request_timeout_s: float
    max_retries: int
    max_concurrent_groups: int


@dataclass(frozen=True)
class SyncPlan:
    transport: str  # tensor | distributed
    backend: str  # value | cuda_ipc | gloo | nccl
    bucket_bytes: int
    verify: str  # version | canary
    total_bytes: int  # one full copy of the weights
