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
    context_length: int | None  # None: what the model's config.json says
    group: str = "policy-regular"  # name of its server group
    type: str = "regular"  # regular | prefill | decode | encoder
    model: str = "policy"  # or the name of a frozen model
    pp: int = 1
    ep: int = 1
    dp_attention: int = 1
    nodes: tuple[int, ...] = (0,)  # that its slots are on
    offload: bool = False  # its memory is the trainer's while that works
    bootstrap_port: int | None = None  # where decode engines meet a prefill engine; None: picked at start
    extra: tuple[tuple[str, Any], ...] = ()  # further arguments of SGLang, by their names there


@dataclass(frozen=True)
class RouterPlan:
    policy: str
    port: int | None


@dataclass(frozen=True)
class GroupPlan:
    """A server group: its slots, and the numbers of its engines (a placeholder has none)."""

    name: str
    type: str  # regular | prefill | decode | placeholder | encoder
    model: str
    slots: tuple[int, ...]
    engines: tuple[int, ...]


@dataclass(frozen=True)
class ServedModelPlan:
    """A frozen model, its engines and their router. It never gets new weights."""

    name: str
    path: str
    engines: tuple[int, ...]
    router: RouterPlan | None
    dtype: str = "bfloat16"  # float32 | bfloat16
    context_length: int | None = None
    weight_bytes: int = 0  # of one copy; 0 when the model is not here yet


@dataclass(frozen=True)
class ExternalPlan:
    """A server that runs already; it is attached and never stopped."""

    url: str
    model: str


@dataclass(frozen=True)
class ReservedPlan:
    """GPUs of a node that something else uses."""

    node: int
    gpus: tuple[int, ...]
    what: str


@dataclass(frozen=True)
class DeploymentPlan:
    """What the engines are organised in, and what lives beside them."""

    groups: tuple[GroupPlan, ...] = ()
    models: tuple[ServedModelPlan, ...] = ()
    external: tuple[ExternalPlan, ...] = ()
    reserved: tuple[ReservedPlan, ...] = ()


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
    offload: bool = False
    expected_response_tokens: int | None = None  # for estimates alone


@dataclass(frozen=True)
class AsyncPlan:
    """How generation runs ahead; by how much is RunPlan.max_staleness. The bound on groups in flight is
    RolloutPlan.max_concurrent_groups in every mode."""

    name: str = "sync"  # sync | one_step | fully_async
    pause_mode: str | None = None  # abort | retract | in_place; None where nothing runs while weights arrive
    partial_rollout: bool = False
    weight_sync_interval: int = 1  # steps


SYNCHRONOUS = AsyncPlan()


@dataclass(frozen=True)
class SyncPlan:
    transport: str  # tensor | distributed | disk | delta
    backend: str  # value | cuda_ipc | gloo | nccl | disk | delta
    bucket_bytes: int
    verify: str  # version | canary
    total_bytes: int  # one full copy of the weights
    directory: str | None = None  # where files go; None: into the folder of the run
    disk_bytes: int = 0  # most that lies there at a time
    host_bytes: int = 0  # delta: the copy in host memory of trainer rank 0
    engine_bytes: int = 0  # delta: the copy of each engine, a file in the temporary folder of its node
