"""Does the run fit into its GPUs: `rlrun.plan.memory` on the configuration. cuda only."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.memory import GIB, Layout, engine_weights, estimate, host_bytes, kv_cache, worst_phase
from rlrun.plan.placement import data_parallel
from rlrun.plan.remedies import Remedy, Valid, cheapest_two, holds_a_sample, room_for_a_sample, word
from rlrun.plan.rules.critic import has_critic
from rlrun.plan.rules.placement import engine_tp_sizes, stays_within_nodes, trainer_tp_sizes
from rlrun.plan.rules.policy import uses_reference

FRACTION = "rollout.sglang.mem_fraction_static"


def layout_of(c: Context) -> Layout | None:
    """The configuration in the terms of `rlrun.plan.memory`; None on cpu, and for sizes that do not divide, which other
    rules refuse."""
    p, t, r = c.config.placement, c.config.trainer, c.config.rollout
    packed, cap = t.batching == "packed", t.max_tokens_per_gpu
    if p.device != "cuda" or (cap if packed else t.micro_batch_size) is None:
        return None
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
        reference=uses_reference(c.config.algo),
        critic=has_critic(c),
        teacher=c.teacher if c.config.algo.teacher_path is not None else None,
        engine_tp=p.rollout.gpus_per_engine,
        mem_fraction=r.sglang.mem_fraction_static,
        max_total_tokens=r.sglang.max_total_tokens,
        sample_tokens=r.max_prompt_tokens + r.max_response_tokens,
        bucket_bytes=c.config.weight_sync.bucket_mb * 2**20,
    )
    return layout if validity(c)(layout) else None


def validity(c: Context) -> Valid:
    """Whether the sizes of a layout divide everything they have to, with the GPUs of the configuration."""
    p = c.config.placement

    def valid(m: Layout) -> bool:
        spec = m.spec
        replicas = m.tp * m.pp * m.cp * m.dp == p.trainer.gpus and m.dp > 0
        heads = not any(size % m.tp for size in trainer_tp_sizes(spec, m.tp).values())
        experts = m.ep == 1 or (
            spec.moe is not None and spec.moe.num_experts % m.ep == 0 and (m.tp * m.cp * m.dp) % m.ep == 0
        )
        engine = p.rollout.gpus % m.engine_tp == 0 and stays_within_nodes(p, m.engine_tp)
        engine = engine and not any(size % m.engine_tp for size in engine_tp_sizes(spec, m.engine_tp).values())
        return replicas and heads and experts and engine and spec.num_layers % m.pp == 0

    return valid


def gpu_memory(c: Context) -> Iterator[Problem]:
    m = layout_of(c)
    if m is None or (m.colocated and m.mem_fraction is None):  # engine-memory-unset says so
        return
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
    if m.max_total_tokens is not None and m.max_total_tokens < m.sample_tokens:
        hint = f"set rollout.sglang.max_total_tokens to {2 * m.sample_tokens} or more"
    else:
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
    processes = min(p.gpus_per_node, p.trainer.gpus) + min(p.gpus_per_node, p.rollout.gpus)
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
