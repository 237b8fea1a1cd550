"""Does the run fit into its GPUs: `rlrun.plan.memory` on the configuration. cuda only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from rlrun.errors import Problem
from rlrun.plan.context import Context, local_path
from rlrun.plan.decide.model import by_device
from rlrun.plan.groups import POLICY, Group, engine_blocks, has_trainer, rollout_gpus
from rlrun.plan.kv import engine_weights, kv_cache
from rlrun.plan.layout import GIB, TIGHT, TRAINER_OVERHEAD, Layout, state_bytes_per_parameter
from rlrun.plan.memory import estimate, floor_bytes, worst_phase
from rlrun.plan.parameters import is_even, stage_starts
from rlrun.plan.placement import data_parallel, trainer_slots
from rlrun.plan.remedies import Remedy, Valid, cheapest_two, holds_a_sample, room_for_a_sample, word
from rlrun.plan.rules.critic import has_critic
from rlrun.plan.rules.engines import fits_nodes, places_of, shares_equally
from rlrun.plan.rules.placement import trainer_tp_sizes
from rlrun.plan.rules.policy import uses_reference
from rlrun.plan.rules.server_groups import sglang_of
from rlrun.plan.served import weight_bytes
from rlrun.plan.types import MemoryPlan

FRACTION = "rollout.sglang.mem_fraction_static"
BYTES = {"auto": 2, "bfloat16": 2, "float32": 4}


def layout_of(c: Context) -> Layout | None:
    """The configuration in the terms of `rlrun.plan.memory`; None on cpu, without a trainer or without engines, and for
    sizes that do not divide, which other rules refuse. With several server groups of the policy, the one whose GPUs
    have least room."""
    found = _tightest(c)
    return found[0] if found is not None else None


def _tightest(c: Context) -> tuple[Layout, Group] | None:
    p, t = c.config.placement, c.config.trainer
    packed, cap = t.batching == "packed", t.max_tokens_per_gpu
    if p.device != "cuda" or (cap if packed else t.micro_batch_size) is None or not has_trainer(p):
        return None
    found = [(m, group) for group in c.groups if (m := _layout(c, group)) is not None]
    if len(found) < 2:  # nothing to compare, and estimates take time
        return found[0] if found else None
    return min(found, key=lambda pair: _room(pair[0]))


def engine_keys(c: Context) -> tuple[str, str]:
    """The keys of the share and of the size of the engines that `layout_of` is about."""
    found = _tightest(c)
    assert found is not None
    _, group = found
    own = "mem_fraction_static" in group.sglang
    return f"{group.key}.sglang.mem_fraction_static" if own else FRACTION, group.size_key


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
        weight_bytes=BYTES[c.config.model.dtype],
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
        reference=uses_reference(c.config.algo),
        critic=has_critic(c),
        teacher=c.teacher if c.config.algo.teacher_path is not None else None,
        engine_tp=group.tp,
        mem_fraction=sglang.mem_fraction_static,
        max_total_tokens=sglang.max_total_tokens,
        sample_tokens=r.max_prompt_tokens + r.max_response_tokens,
        bucket_bytes=0 if c.config.weight_sync.transport == "disk" else c.config.weight_sync.bucket_mb * 2**20,
        etp=p.trainer.etp,
        first_stage_layers=p.trainer.first_stage_layers,
        last_stage_layers=p.trainer.last_stage_layers,
        gradient_bytes=BYTES[t.grad_dtype],
        moment_bytes=BYTES[t.optimizer_dtype],
        optimizer_offload=t.optimizer_offload,
        trainer_offload=t.offload,
        rollout_offload=r.offload,
        gather_on_host=c.config.checkpoint.gather == "host",
        async_save=c.config.checkpoint.async_save,
        max_running=sglang.max_running_requests,
        rollout_gpus=rollout_gpus(p),
        gpus_per_node=p.gpus_per_node,
        host_gib=p.host_memory_gib,
        delta_sync=c.config.weight_sync.transport == "delta",
        frozen_copies=_frozen_copies(c),
        canary=c.config.weight_sync.verify == "canary",
        engine_pp=group.pp,
        engine_dp=group.dp_attention,
    )
    return layout if validity(c, group)(layout) else None


def _frozen_copies(c: Context) -> int:
    """Bytes that SGLang keeps on the host, on the node with most, of frozen models whose engines make room."""
    p, r = c.config.placement, c.config.rollout
    found: Counter[int] = Counter()
    if not r.offload or p.mode != "colocated":
        return 0
    places, shared = places_of(p, rollout_gpus(p)), set(trainer_slots(p))
    for group, slots in engine_blocks(c.groups):
        model = r.models.get(group.model)
        if model is None or shared.isdisjoint(slots):
            continue
        size = weight_bytes(local_path(model.path), by_device(model.dtype, p.device))
        for slot in slots:
            found[places[slot][0]] += size // len(slots)
    return max(found.values(), default=0)


def validity(c: Context, own: Group | None = None) -> Valid:
    """Whether the sizes of a layout divide everything they have to, with the GPUs of the configuration, and whether the
    key of the size of an engine reaches them alone. `own` is the group of engines; without one, that of `layout_of`."""
    p = c.config.placement
    found = None if own is not None else _tightest(c)
    group = own if own is not None else found[1] if found is not None else c.groups[0]

    def valid(m: Layout) -> bool:
        spec = m.spec
        replicas = m.world == p.trainer.gpus and m.dp > 0
        heads = not any(size % m.tp for size in trainer_tp_sizes(spec, m.tp).values())
        experts = m.ep * m.etp == 1 or (
            spec.moe is not None
            and spec.moe.num_experts % m.ep == 0
            and spec.moe.ffn_hidden_size % m.etp == 0
            and (m.tp * m.cp * m.dp) % (m.ep * m.etp) == 0
        )
        stages = is_even(spec.num_layers, m.pp, m.first_stage_layers, m.last_stage_layers)
        if spec.indexer is not None:
            stages = stages and set(stage_starts(m.stages)) <= set(spec.indexer.full_layers)
        whole_samples = m.cp == 1 or spec.linear_attention is None
        size = m.engine_tp * group.pp
        engine = group.gpus % size == 0 and fits_nodes(p, group.first, group.gpus, size)
        engine = engine and m.engine_tp % group.dp_attention == 0 and m.engine_tp % group.ep == 0
        engine = engine and shares_equally(spec, m.engine_tp, group.dp_attention, group.ep)
        if p.rollout.server_groups:  # a general key may reach others too, and no engine of this one
            engine = engine and m.engine_tp == group.tp
        return replicas and heads and experts and engine and stages and whole_samples

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
    found = [_named(c, remedy) for remedy in found]
    keys = ["placement.gpu", "placement.mode", "placement.trainer.gpus", "placement.trainer.tp", "placement.trainer.pp"]
    keys += [engine_keys(c)[0], "trainer.recompute"]
    if floor_bytes(m) > m.gpu_bytes:
        summary += f". {_floor(m)}"
    if enough:
        hint = f"set {' or '.join(_effect(r, phase.phase, m) for r in found)}"
    elif found:
        hint = f"no single change is enough; most help {' and '.join(_effect(r, phase.phase, m) for r in found)}"
    else:
        hint = "use more GPUs (placement.trainer.gpus), a GPU with more memory (placement.gpu) or a smaller model"
    yield c.problem("memory-does-not-fit", summary, *keys, hint=f"{hint}. rlrun plan --suggest searches further")


def _floor(m: Layout) -> str:
    """`18 bytes a parameter are 92.4 GiB on each of 64 GPUs, however they are arranged; 96 would do`."""
    size = state_bytes_per_parameter(m)
    room = TIGHT * m.gpu_bytes - TRAINER_OVERHEAD
    enough = math.ceil(size * m.spec.num_parameters / room / m.gpus_per_node) * m.gpus_per_node
    return (
        f"No arrangement of {m.world} GPUs can hold it: {size} bytes a parameter are at least "
        f"{_gib(floor_bytes(m))} GiB a GPU, and {enough} GPUs of this kind are the least that could"
    )


def _no_room_for_a_sample(c: Context, m: Layout) -> Problem:
    kv = kv_cache(m)
    better = room_for_a_sample(m, validity(c))
    hint = "use more GPUs, a GPU with more memory (placement.gpu) or shorter samples"
    if better is not None:
        better = _named(c, better)
        hint = f"set {better.key} to {better.value}, whose KV cache holds {better.memory.kv.samples} such samples"
    summary = (
        f"an engine's share of a GPU ({m.mem_fraction or 'unset'} of {_gib(m.gpu_bytes)} GiB) has "
        f"{_gib(engine_weights(m))} GiB of weights to hold, and its KV cache of {kv.tokens} tokens is too small for "
        f"one sample of {m.sample_tokens}"
    )
    keys = (*engine_keys(c), "placement.gpu")
    return c.problem("engine-memory-too-small", summary, *keys, hint=hint)


def _named(c: Context, remedy: Remedy) -> Remedy:
    """The remedy with the key that counts for the engines `layout_of` is about."""
    return replace(remedy, key=engine_keys(c)[0]) if remedy.key == FRACTION else remedy


def _effect(remedy: Remedy, phase: str, m: Layout) -> str:
    """`trainer.recompute to full (train 90.1 -> 61.0 GiB)`."""
    before = estimate(m)
    was, now = (_phase_bytes(memory, phase) for memory in (before, remedy.memory))
    host = remedy.memory.host.total_bytes - before.host.total_bytes
    also = f", a node's host memory +{_gib(host)}" if host > GIB else ""
    return f"{remedy.key} to {word(remedy.value)} ({phase} {_gib(was)} -> {_gib(now)} GiB{also})"


def _phase_bytes(memory: MemoryPlan, phase: str) -> int:
    """Of the phase of that name; the push is called wake-up where engines come back for it."""
    names = {phase, *({"sync", "wake-up"} if phase in ("sync", "wake-up") else ())}
    return next(p.total_bytes for p in memory.phases if p.phase in names)


def host_memory(c: Context) -> Iterator[Problem]:
    m = layout_of(c)
    if m is None:
        return
    host = estimate(m).host
    if host.node_bytes is None or host.total_bytes <= host.node_bytes:
        return
    biggest = max(host.terms, key=lambda term: term.num_bytes)
    doing = "while a checkpoint is saved" if host.moment == "save" else "while engines generate"
    summary = (
        f"a node needs about {_gib(host.total_bytes)} GiB of host memory {doing}, and has {m.host_gib:g}; most of it "
        f"{biggest.name}, {_gib(biggest.num_bytes)} GiB"
    )
    need = math.ceil(host.total_bytes / GIB)
    hint = f"set placement.host_memory_gib to {need} where nodes have it, or use more nodes (placement.num_nodes)"
    gathered = replace(m, gather_on_host=True)
    if not m.gather_on_host and _host_fits(gathered) and estimate(gathered).verdict != "does not fit":
        hint = "set checkpoint.gather to host (one copy of the optimizer state instead of one a GPU)"
    elif host.moment == "rollout" and m.async_save and _host_fits(replace(m, async_save=False)):
        hint = "set checkpoint.async_save to false (no copy of the state beside the parked trainer)"
    elif m.delta_sync and _host_fits(replace(m, delta_sync=False)):
        hint = f"set weight_sync.transport to disk (no copies of the weights), or {hint.removeprefix('set ')}"
    elif m.trainer_offload and _host_fits(replace(m, trainer_offload=False)):
        hint = f"set trainer.offload to false, or {hint.removeprefix('set ')}"
    yield c.problem("host-memory-does-not-fit", summary, "placement.host_memory_gib", hint=hint)


def _host_fits(m: Layout) -> bool:
    host = estimate(m).host
    return host.node_bytes is None or host.total_bytes <= host.node_bytes


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f}"


RULES = (gpu_memory, host_memory)
