"""The engines, what is asked of them, and how weights reach them."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.plan import placement
from rlrun.plan.decide.model import BYTES
from rlrun.plan.parts.model import ModelPlan
from rlrun.plan.parts.rollout import EnginePlan, RolloutPlan, RouterPlan, SyncPlan

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
            extra=tuple(s.engine_arguments.items()),
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
        max_concurrent_groups=r.max_concurrent_groups,
    )


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
