"""The engines, what is asked of them, and how weights reach them."""

from __future__ import annotations

from rlrun.config.partial import Partial
from rlrun.config.schema import RunConfig
from rlrun.plan import placement
from rlrun.plan.context import Context, absolute, local_path
from rlrun.plan.decide.model import BYTES, by_device
from rlrun.plan.groups import POLICY, engine_blocks, has_engines, has_trainer
from rlrun.plan.parts.model import ModelPlan
from rlrun.plan.parts.rollout import (
    AsyncPlan,
    DeploymentPlan,
    EnginePlan,
    ExternalPlan,
    GroupPlan,
    ReservedPlan,
    RolloutPlan,
    RouterPlan,
    ServedModelPlan,
    SyncPlan,
)
from rlrun.plan.rules.server_groups import sglang_of
from rlrun.plan.served import weight_bytes

CONTEXT_MARGIN = 8
"""Tokens an engine allows beyond prompt and response; SGLang refuses a request that fills its context exactly."""


def engines_plan(c: Context) -> tuple[EnginePlan, ...]:
    """Every engine of ours, group by group."""
    config = c.config
    p, r = config.placement, config.rollout
    blocks = engine_blocks(c.groups)
    taken = placement.ports(r.port, c.groups, p.rollout.external)[0] if r.port is not None else None
    places = placement.slots(p)
    shared = set(placement.trainer_slots(p)) if r.offload else set()
    longest = r.max_prompt_tokens + r.max_response_tokens + CONTEXT_MARGIN
    engines = []
    for index, (group, own) in enumerate(blocks):
        s = sglang_of(c, group)
        listens = taken[index] if taken is not None else None
        backend = s.attention_backend
        if backend == "auto":
            backend = {"cpu": "torch_native", "cuda": "triton"}[p.device]
        engines.append(
            EnginePlan(
                index=index,
                slots=own,
                tp=group.tp,
                port=listens.http if listens else None,
                dist_port=listens.dist if listens else None,
                threads=p.engine_threads,
                attention_backend=backend,
                mem_fraction_static=s.mem_fraction_static,
                max_total_tokens=s.max_total_tokens,
                max_running_requests=s.max_running_requests,
                cuda_graph=s.cuda_graph,
                log_level=s.log_level,
                seeded=r.seeded,
                context_length=longest if group.model == POLICY else r.models[group.model].context_length,
                extra=tuple(s.engine_arguments.items()),
                group=group.name,
                type=group.type,
                model=group.model,
                pp=group.pp,
                ep=group.ep,
                dp_attention=group.dp_attention,
                nodes=tuple(dict.fromkeys(places[slot].node for slot in own)),
                offload=not shared.isdisjoint(own),
                bootstrap_port=listens.bootstrap if listens else None,
            )
        )
    return tuple(engines)


def routers_plan(c: Context) -> dict[str, RouterPlan]:
    """The router of each model that needs one."""
    p, r = c.config.placement, c.config.rollout
    if not has_engines(p):
        return {}
    names = placement.routed(c.groups, p.rollout.external)
    taken = placement.ports(r.port, c.groups, p.rollout.external)[1] if r.port is not None else [None] * len(names)
    return {name: RouterPlan(r.router_policy, port) for name, port in zip(names, taken, strict=True)}


def deployment_plan(c: Context, engines: tuple[EnginePlan, ...], routers: dict[str, RouterPlan]) -> DeploymentPlan:
    p = c.config.placement

    def numbers(**wanted: str) -> tuple[int, ...]:
        return tuple(e.index for e in engines if all(getattr(e, name) == value for name, value in wanted.items()))

    return DeploymentPlan(
        groups=tuple(GroupPlan(g.name, g.type, g.model, tuple(g.slots), numbers(group=g.name)) for g in c.groups),
        models=tuple(
            ServedModelPlan(
                name=name,
                path=local_path(m.path) or m.path,
                engines=numbers(model=name),
                router=routers.get(name),
                dtype=by_device(m.dtype, p.device),
                context_length=m.context_length,
                weight_bytes=weight_bytes(local_path(m.path), by_device(m.dtype, p.device)),
            )
            for name, m in c.config.rollout.models.items()
        ),
        external=tuple(ExternalPlan(e.url.rstrip("/"), e.model) for e in p.rollout.external),
        reserved=tuple(ReservedPlan(e.node, tuple(sorted(e.gpus)), e.what) for e in p.reserved),
    )


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
        offload=r.offload,
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


def sync_plan(config: RunConfig, model: ModelPlan) -> SyncPlan | None:
    """None when there is nobody to send weights, or nobody to send them to."""
    s = config.weight_sync
    if not (has_trainer(config.placement) and has_engines(config.placement)):
        return None
    backend = {
        ("tensor", "cpu"): "value",
        ("tensor", "cuda"): "cuda_ipc",
        ("distributed", "cpu"): "gloo",
        ("distributed", "cuda"): "nccl",
    }.get((s.transport, config.placement.device), s.transport)
    total = model.spec.num_parameters * BYTES[model.dtype]
    # A checkpoint stays until every engine has the next one; of a delta, the first file is the largest.
    disk = {"disk": 2 * total, "delta": total}.get(s.transport, 0)
    copy = total if s.transport == "delta" else 0
    directory = absolute(s.dir) if s.dir is not None else None
    return SyncPlan(s.transport, backend, s.bucket_mb * 2**20, s.verify, total, directory, disk, copy, copy)
