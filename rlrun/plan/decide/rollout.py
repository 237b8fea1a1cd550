"""The engines, what is asked of them, and how weights reach them."""

from __future__ import annotations

from rlrun.config.partial import Partial
from rlrun.config.schema import RunConfig
from rlrun.plan import placement
from rlrun.plan.decide.model import BYTES
from rlrun.plan.parts.model import ModelPlan
from rlrun.plan.parts.rollout import AsyncPlan, EnginePlan, RolloutPlan, RouterPlan, SyncPlan

CONTEXT_MARGIN = 8
"""Tokens an engine allows beyond prompt and response; SGLang refuses a request that fills its context exactly."""


def engines_plan(config: RunConfig) -> tuple[tuple[EnginePlan, ...], RouterPlan | None]:
    p, r, s = config.placement, config.rollout, config.rollout.sglang
    slots = placement.engine_slots(p)
    engine_ports, router_port = placement.ports(r.port, len(slots)) if r.port is not None else ([], None)
    backend = (
        {"cpu": "torch_native", "cuda": "triton"}[p.device] if s.attention_backend == "auto" else s.attention_backend
    )
    engines = tuple(
        EnginePlan(
            index=index,
            slots=own,
            tp=len(own),
            port=engine_ports[index][0] if engine_ports else None,
            dist_port=engine_ports[index][1] if engine_ports else None,
            threads=p.engine_threads,
            attention_backend=backend,
            mem_fraction_static=s.mem_fraction_static,
            max_total_tokens=s.max_total_tokens,
            max_running_requests=s.max_running_requests,
            cuda_graph=s.cuda_graph,
            log_level=s.log_level,
            seeded=r.seeded,
            context_length=r.max_prompt_tokens + r.max_response_tokens + CONTEXT_MARGIN,
        )
        for index, own in enumerate(slots)
    )
    return engines, RouterPlan(r.router_policy, router_port) if len(engines) > 1 else None


def rollout_plan(config: RunConfig) -> RolloutPlan:
    r = config.rollout
    return RolloutPlan(
        max_prompt_tokens=r.max_prompt_tokens,
        max_response_tokens=r.max_response_tokens,
        temperature=float(r.temperature),
        stop=tuple(r.stop),
        seeded=r.seeded,
        request_timeout_s=float(r.request_timeout_s),
        max_retries=r.max_retries,
        max_concurrent_groups=in_flight_groups(config),
        expected_response_tokens=r.expected_response_tokens,
    )


def in_flight_groups(config: RunConfig | Partial) -> int:
    """Prompt groups generated at once: async_mode's bound when generation never ends, else the rollout's."""
    a = config.async_mode
    if a.name != "fully_async":
        return config.rollout.max_concurrent_groups
    return a.max_in_flight_groups or config.algo.prompts_per_rollout


def async_plan(config: RunConfig) -> AsyncPlan:
    a = config.async_mode
    return AsyncPlan(a.name, a.pause_mode, a.partial_rollout, a.weight_sync_interval)


def sync_plan(config: RunConfig, model: ModelPlan) -> SyncPlan:
    s = config.weight_sync
    backend = {
        ("tensor", "cpu"): "value",
        ("tensor", "cuda"): "cuda_ipc",
        ("distributed", "cpu"): "gloo",
        ("distributed", "cuda"): "nccl",
    }[s.transport, config.placement.device]
    total = model.spec.num_parameters * BYTES[model.dtype]
    return SyncPlan(s.transport, backend, s.bucket_mb * 2**20, s.verify, total)
