"""Does the run fit into its GPUs: `rlrun.plan.memory` on the configuration. cuda only."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.groups import POLICY, Group, has_trainer, rollout_gpus
from rlrun.plan.memory import GIB, Layout, engine_weights, estimate, host_bytes, kv_cache, worst_phase
from rlrun.plan.placement import data_parallel
from rlrun.plan.remedies import Remedy, Valid, cheapest_two, holds_a_sample, room_for_a_sample, word
from rlrun.plan.rules.engines import fits_nodes, shares_equally
from rlrun.plan.rules.placement import trainer_tp_sizes
from rlrun.plan.rules.server_groups import sglang_of

FRACTION = "rollout.sglang.mem_fraction_static"


def layout_of(c: Context) -> Layout | None:
    """The configuration in the terms of `rlrun.plan.memory`; None on cpu, without a trainer or without engines, and for
    sizes that do not divide, which other rules refuse. With several server groups of the policy, the one whose GPUs
    have least room."""
    p, t = c.config.placement, c.config.trainer
    packed, cap = t.batching == "packed", t.max_tokens_per_gpu
    if p.device != "cuda" or (cap if packed else t.micro_batch_size) is None:
        return None
    found = [m for group in c.groups if (m := _layout(c, group)) is not None]
    return min(found, key=_room) if found and has_trainer(p) else None


def _room(m: Layout) -> tuple[int, int]:
    memory = estimate(m)
    return memory.kv.samples, -worst_phase(memory).total_bytes


def _layout(c: Context, group: Group) -> Layout | None:
    """None for groups that have no engines of the policy."""
    p, t, r = c.config.placement, c.config.trainer, c.config.rollout
    packed, cap = t.batching == "packed", t.max_tokens_per_gpu
    if group.model != POLICY or not group.has_engines or group.size % group.pp or group.gpus % group.size:
        return None
    sglang = sglang_of(c, group)
    layout = Layout(
        spec=c.spec,
        gpu=p.gpu,
        weight_bytes={"auto": 2, "bfloat16": 2, "float32": 4}[c.config.model.dtype],
        colocated=p.mode == "colocated",
        tp=p.trainer.tp,
        pp=p.trainer.pp,
        cp=p.trainer.cp,
        dp=data_parallel(p),
        ep=p.trainer.ep,
        max_tokens=cap if packed else None,
        micro_batch_size=None if packed else t.micro_batch_size,
        recompute=t.recompute == "full",
        sequence_parallel=t.sequence_parallel and p.trainer.tp > 1,
        distributed_optimizer=t.distributed_optimizer,
        reference=c.config.algo.kl_coef > 0,
        engine_tp=group.tp,
        mem_fraction=sglang.mem_fraction_static,
        max_total_tokens=sglang.max_total_tokens,
        sample_tokens=r.max_prompt_tokens + r.max_response_tokens,
        bucket_bytes=c.config.weight_sync.bucket_mb * 2**20,
        engine_pp=group.pp,
        engine_dp=group.dp_attention,
    )
    return layout if validity(c, group)(layout) else None


def validity(c: Context, own: Group | None = None) -> Valid:
    """Whether the sizes of a layout divide everything they have to, with the GPUs of the configuration, and whether the
    keys that a change would set are those that count. `own` is the group of engines; without one, the first of the
    policy."""
    p = c.config.placement
    group = own or next(g for g in c.groups if g.model == POLICY and g.has_engines)
    fraction = sglang_of(c, group).mem_fraction_static

    def valid(m: Layout) -> bool:
        spec = m.spec
        replicas = m.tp * m.pp * m.cp * m.dp == p.trainer.gpus and m.dp > 0
        heads = not any(size % m.tp for size in trainer_tp_sizes(spec, m.tp).values())
        experts = m.ep == 1 or (
            spec.moe is not None and spec.moe.num_experts % m.ep == 0 and (m.tp * m.cp * m.dp) % m.ep == 0
        )
        size = m.engine_tp * group.pp
        engine = group.gpus % size == 0 and fits_nodes(p, group.first, group.gpus, size)
        engine = engine and m.engine_tp % group.dp_attention == 0 and m.engine_tp % group.ep == 0
        engine = engine and shares_equally(spec, m.engine_tp, group.dp_attention, group.ep)
        if p.rollout.server_groups:  # whose sizes and shares a general key may not reach
            engine = engine and m.engine_tp == group.tp and m.mem_fraction == fraction
        return replicas and heads and experts and engine and spec.num_layers % m.pp == 0

    return valid


def gpu_memory(c: Context) -> Iterator[Problem]:
    m = layout_of(c)
    if m is None or (m.colocated and m.mem_fraction is None):  # engine-memory-unset says so
        return
    if m.max_total_tokens is not None and m.max_total_tokens < m.sample_tokens:
        return  # kv-cache-too-small says so
    if not holds_a_sample(estimate(m)):
        yield _no_room_for_a_sample(c, m)
        return
    phase = worst_phase(estimate(m))
    if phase.verdict != "does not fit":
        return
    biggest = max(phase.terms, key=lambda term: term.num_bytes)
    summary = (
        f"{phase.phase} needs {_gib(phase.total_bytes)} GiB of a GPU that has {_gib(m.gpu_bytes)} ({m.gpu}); "
        f"most of it {biggest.name}, {_gib(biggest.num_bytes)} GiB"
    )
    found, enough = cheapest_two(m, validity(c))
    keys = ["placement.gpu", "placement.mode", "placement.trainer.tp", "placement.trainer.pp"]
    keys += [key for key in (FRACTION, "trainer.recompute") if key not in keys]
    if enough:
        hint = f"set {' or '.join(_effect(r, phase.phase, m) for r in found)}"
    elif found:
        hint = f"no single change is enough; most help {' and '.join(_effect(r, phase.phase, m) for r in found)}"
    else:
        hint = "use more GPUs (placement.trainer.gpus), a GPU with more memory (placement.gpu) or a smaller model"
    yield c.problem("memory-does-not-fit", summary, *keys, hint=f"{hint}. rlrun plan --suggest searches further")


def _no_room_for_a_sample(c: Context, m: Layout) -> Problem:
    kv = kv_cache(m)
    better = room_for_a_sample(m, validity(c))
    hint = "use more GPUs, a GPU with more memory (placement.gpu) or shorter samples"
    if better is not None:
        hint = f"set {better.key} to {better.value}, whose KV cache holds {better.memory.kv.samples} such samples"
    summary = (
        f"an engine's share of a GPU ({m.mem_fraction or 'unset'} of {_gib(m.gpu_bytes)} GiB) has "
        f"{_gib(engine_weights(m))} GiB of weights to hold, and its KV cache of {kv.tokens} tokens is too small for "
        f"one sample of {m.sample_tokens}"
    )
    keys = (FRACTION, "placement.rollout.gpus_per_engine", "placement.gpu")
    return c.problem("engine-memory-too-small", summary, *keys, hint=hint)


def _effect(remedy: Remedy, phase: str, before: Layout) -> str:
    """`trainer.recompute to full (train 90.1 -> 61.0 GiB)`."""
    now = next(p for p in remedy.memory.phases if p.phase == phase).total_bytes
    was = next(p for p in estimate(before).phases if p.phase == phase).total_bytes
    return f"{remedy.key} to {word(remedy.value)} ({phase} {_gib(was)} -> {_gib(now)} GiB)"


def host_memory(c: Context) -> Iterator[Problem]:
    m, p = layout_of(c), c.config.placement
    if m is None or p.host_memory_gib is None:
        return
    processes = min(p.gpus_per_node, p.trainer.gpus) + min(p.gpus_per_node, rollout_gpus(p))
    need = host_bytes(m, p.gpus_per_node, processes)
    if need > p.host_memory_gib * GIB:
        summary = (
            f"a node needs about {_gib(need)} GiB of host memory while a checkpoint is saved, and has "
            f"{p.host_memory_gib:g}"
        )
        hint = "use nodes with more memory (placement.host_memory_gib), or more nodes (placement.num_nodes)"
        yield c.problem("host-memory-does-not-fit", summary, "placement.host_memory_gib", hint=hint)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f}"


RULES = (gpu_memory, host_memory)
