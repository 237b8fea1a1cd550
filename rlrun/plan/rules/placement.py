"""Where things run: GPU counts, parallel sizes, nodes, and what a device makes meaningless."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.placement import data_parallel, divisors, engine_slots, one_of, slots_needed
from rlrun.plan.types import ModelSpec

TRAINER, ROLLOUT = "placement.trainer", "placement.rollout"


def trainer_divisible(c: Context) -> Iterator[Problem]:
    t = c.config.placement.trainer
    size = t.tp * t.pp * t.cp
    if t.gpus % size:
        hint = f"set {TRAINER}.gpus to {-(-t.gpus // size) * size}, a multiple of tp x pp x cp = {size}"
        keys = [f"{TRAINER}.{k}" for k in ("gpus", "tp", "pp", "cp")]
        yield c.problem(
            "trainer-indivisible", f"{t.gpus} trainer GPUs cannot form replicas of {size}", *keys, hint=hint
        )


def enough_gpus(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    have, need = p.num_nodes * p.gpus_per_node, slots_needed(p)
    if need > have:
        how = "the larger of trainer and rollout" if p.mode == "colocated" else "trainer plus rollout"
        if p.device == "cpu":  # a slot is only a process
            hint = f"set placement.gpus_per_node to {-(-need // p.num_nodes)}"
        else:
            hint = f"set placement.num_nodes to {-(-need // p.gpus_per_node)}, or ask for fewer GPUs"
        keys = (f"{TRAINER}.gpus", f"{ROLLOUT}.gpus", "placement.num_nodes", "placement.gpus_per_node")
        summary = f"the run needs {need} GPUs ({how}) and the nodes have {have}"
        yield c.problem("too-many-gpus", summary, *keys, hint=hint)


def idle_nodes(c: Context) -> Iterator[Problem]:
    """Nodes that the run would hold and never use."""
    p, key = c.config.placement, "placement.num_nodes"
    if p.num_nodes == 1:
        return
    need = slots_needed(p)
    used = -(-need // p.gpus_per_node)
    if p.device == "cpu":
        summary = "slots on cpu are processes of one machine"
        hint = f"set {key} to 1, and placement.gpus_per_node to {need}"
        yield c.problem("inactive-key", summary, key, "placement.device", hint=hint)
    elif used < p.num_nodes:
        summary = f"the run's {need} GPUs are on {used} of {p.num_nodes} nodes, and the rest would do nothing"
        keys = (key, "placement.gpus_per_node", f"{TRAINER}.gpus", f"{ROLLOUT}.gpus")
        yield c.problem("inactive-key", summary, *keys, hint=f"set {key} to {used}, or ask for more GPUs")


def enough_samples(c: Context) -> Iterator[Problem]:
    """Trainer replicas and engines that would get nothing to do in any step."""
    a, p = c.config.algo, c.config.placement
    dp, engines = data_parallel(p), p.rollout.gpus // p.rollout.gpus_per_engine
    step, rollout = a.groups_per_step * a.group_size, a.prompts_per_rollout * a.group_size
    if step < dp:
        summary = f"an optimizer step has {step} samples for {dp} data-parallel replicas of the trainer"
        keys = ("algo.groups_per_step", "algo.group_size", f"{TRAINER}.gpus")
        hint = f"set algo.groups_per_step to {-(-dp // a.group_size)} or more"
        yield c.problem("too-few-samples", summary, *keys, hint=hint)
    if rollout < engines:
        summary = f"a rollout has {rollout} samples for {engines} engines"
        keys = ("algo.prompts_per_rollout", "algo.group_size", f"{ROLLOUT}.gpus")
        hint = f"set algo.prompts_per_rollout to {-(-engines // a.group_size)} or more"
        yield c.problem("too-few-samples", summary, *keys, hint=hint)


def engines_divisible(c: Context) -> Iterator[Problem]:
    r = c.config.placement.rollout
    if r.gpus % r.gpus_per_engine:
        valid = one_of(divisors(r.gpus))
        summary = f"{r.gpus} rollout GPUs cannot form engines of {r.gpus_per_engine}"
        keys = (f"{ROLLOUT}.gpus_per_engine", f"{ROLLOUT}.gpus")
        yield c.problem("engines-indivisible", summary, *keys, hint=f"set {ROLLOUT}.gpus_per_engine to {valid}")


def engine_within_node(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    if p.rollout.gpus % p.rollout.gpus_per_engine:
        return  # engines-indivisible says so
    for index, slots in enumerate(engine_slots(p)):
        if slots[0] // p.gpus_per_node != slots[-1] // p.gpus_per_node:
            valid = [d for d in divisors(p.rollout.gpus) if stays_within_nodes(p, d)]
            hint = f"set {ROLLOUT}.gpus_per_engine to {one_of(valid)}"
            keys = (f"{ROLLOUT}.gpus_per_engine", "placement.gpus_per_node")
            summary = f"engine {index} would have GPUs {slots[0]} to {slots[-1]}, which are on different nodes"
            yield c.problem("engine-crosses-nodes", summary, *keys, hint=hint)
            return


def stays_within_nodes(placement: object, size: int) -> bool:
    """Whether engines of `size` GPUs stay within nodes; they begin where `engine_slots` says."""
    p = placement
    first = 0 if p.mode == "colocated" else p.trainer.gpus  # type: ignore[attr-defined]
    starts = range(first, first + p.rollout.gpus, size)  # type: ignore[attr-defined]
    return all(s // p.gpus_per_node == (s + size - 1) // p.gpus_per_node for s in starts)  # type: ignore[attr-defined]


def trainer_tp_sizes(spec: ModelSpec, tp: int) -> dict[str, int]:
    """What each of the trainer's tensor-parallel ranks has an equal share of. Megatron can also give several ranks the
    same key/value head, which the mapping of qwen3 does not do."""
    sizes = {"attention heads": spec.num_heads, "vocabulary rows": spec.vocab_size}
    if spec.mla is None and (spec.family == "qwen3" or tp % spec.num_kv_heads):
        sizes["key/value heads"] = spec.num_kv_heads
    if spec.linear_attention is not None:
        sizes["delta net key heads"] = spec.linear_attention.num_key_heads
        sizes["delta net value heads"] = spec.linear_attention.num_value_heads
    if spec.moe is None or spec.moe.first_dense:
        sizes["MLP columns"] = spec.ffn_hidden_size
    if spec.moe is not None and spec.moe.shared_ffn_hidden_size:
        sizes["shared expert columns"] = spec.moe.shared_ffn_hidden_size
    return sizes


def engine_tp_sizes(spec: ModelSpec, tp: int) -> dict[str, int]:
    """The same for an engine. SGLang repeats key/value heads when there are more ranks than heads, pads the vocabulary,
    and divides experts like any MLP."""
    sizes = trainer_tp_sizes(spec, tp)
    del sizes["vocabulary rows"]
    sizes.pop("key/value heads", None)
    if spec.mla is None and tp % spec.num_kv_heads:
        sizes["key/value heads"] = spec.num_kv_heads
    if spec.moe is not None:
        sizes["expert columns"] = spec.moe.ffn_hidden_size
    return sizes


def trainer_tp(c: Context) -> Iterator[Problem]:
    tp = c.config.placement.trainer.tp
    yield from _tp_problem(c, "tp-indivisible", f"{TRAINER}.tp", tp, trainer_tp_sizes(c.spec, tp))


def engine_tp(c: Context) -> Iterator[Problem]:
    tp = c.config.placement.rollout.gpus_per_engine
    yield from _tp_problem(c, "engine-tp-indivisible", f"{ROLLOUT}.gpus_per_engine", tp, engine_tp_sizes(c.spec, tp))


def _tp_problem(c: Context, code: str, key: str, tp: int, sizes: dict[str, int]) -> Iterator[Problem]:
    uneven = [f"{size} {name}" for name, size in sizes.items() if size % tp]
    if uneven:
        valid = [d for d in divisors(min(sizes.values())) if not any(size % d for size in sizes.values())]
        hint = f"set {key} to {one_of(valid[:8])}"
        yield c.problem(code, f"{tp} tensor-parallel ranks cannot share {', '.join(uneven)} equally", key, hint=hint)


def layers_divisible(c: Context) -> Iterator[Problem]:
    layers, pp = c.spec.num_layers, c.config.placement.trainer.pp
    if layers % pp:
        hint = f"set {TRAINER}.pp to {one_of(divisors(layers))}"
        yield c.problem(
            "layers-indivisible", f"{layers} layers cannot form {pp} equal stages", f"{TRAINER}.pp", hint=hint
        )


def expert_parallel(c: Context) -> Iterator[Problem]:
    t, moe, key = c.config.placement.trainer, c.spec.moe, f"{TRAINER}.ep"
    if t.ep == 1:
        return
    if moe is None:
        summary = f"expert parallelism divides experts, and family {c.spec.family} has none"
        yield c.problem("inactive-key", summary, key, "model.family", hint=f"set {key} to 1")
        return
    ranks = t.gpus // t.pp
    if moe.num_experts % t.ep or ranks % t.ep:
        valid = [d for d in divisors(ranks) if moe.num_experts % d == 0]
        summary = f"{t.ep} expert-parallel ranks cannot share {moe.num_experts} experts, or {ranks} ranks of a stage"
        keys = (key, f"{TRAINER}.gpus", f"{TRAINER}.pp")
        yield c.problem("ep-indivisible", summary, *keys, hint=f"set {key} to {one_of(valid)}")


def context_parallel(c: Context) -> Iterator[Problem]:
    if c.config.placement.trainer.cp > 1:
        summary = "context parallelism is not supported by this version"
        yield c.problem("cp-unsupported", summary, f"{TRAINER}.cp", hint=f"set {TRAINER}.cp to 1")


def sequence_parallel(c: Context) -> Iterator[Problem]:
    if c.config.trainer.sequence_parallel and c.config.placement.trainer.tp == 1:
        summary = "sequence_parallel splits activations between tensor-parallel ranks, and there is one"
        keys = ("trainer.sequence_parallel", f"{TRAINER}.tp")
        yield c.problem("inactive-key", summary, *keys, hint="set trainer.sequence_parallel to false")


def transport(c: Context) -> Iterator[Problem]:
    p, key = c.config.placement, "weight_sync.transport"
    kind = c.config.weight_sync.transport
    if kind == "tensor" and p.mode == "disaggregated":
        summary = "tensor transport needs trainer and engines on the same GPUs"
        yield c.problem("transport-impossible", summary, key, "placement.mode", hint=f"set {key} to distributed")
    elif kind == "tensor" and p.device == "cuda" and p.num_nodes > 1:
        summary = "tensor transport hands over GPU memory within one node"
        keys = (key, "placement.num_nodes")
        hint = f"set {key} to distributed with placement.mode disaggregated, or placement.num_nodes to 1"
        yield c.problem("transport-impossible", summary, *keys, hint=hint)
    elif kind == "distributed" and p.device == "cuda" and p.mode == "colocated":
        summary = "distributed transport needs a GPU for each member: NCCL refuses trainer and engine on the same one"
        yield c.problem("transport-impossible", summary, key, "placement.mode", hint=f"set {key} to tensor")


def device_keys(c: Context) -> Iterator[Problem]:
    """Keys that only one kind of device reads."""
    cuda_only = (
        "rollout.sglang.mem_fraction_static",
        "rollout.sglang.cuda_graph",
        "placement.gpu",
        "placement.host_memory_gib",
        "placement.network_gb_per_s",
        "rollout.expected_response_tokens",
    )
    cpu_only = ("placement.trainer_threads", "placement.engine_threads")
    device = c.config.placement.device
    for key in cpu_only if device == "cuda" else cuda_only:
        if c.changed(key):
            default = show(all_keys()[key].default)
            summary = f"{key} does nothing on {device}"
            yield c.problem("inactive-key", summary, key, "placement.device", hint=f"set {key} to {default}")


def attention_backend(c: Context) -> Iterator[Problem]:
    key = "rollout.sglang.attention_backend"
    backend, device = c.config.rollout.sglang.attention_backend, c.config.placement.device
    if device == "cpu" and backend not in ("auto", "torch_native"):
        summary = f"attention backend {backend} needs a GPU"
        yield c.problem("attention-backend", summary, key, "placement.device", hint=f"set {key} to auto")
    elif device == "cuda" and backend == "torch_native" and c.config.rollout.seeded:
        summary = "seeded sampling needs an attention backend whose results do not depend on the batch"
        yield c.problem("attention-backend", summary, key, "rollout.seeded", hint=f"set {key} to auto")


def shared_memory(c: Context) -> Iterator[Problem]:
    p, key = c.config.placement, "rollout.sglang.mem_fraction_static"
    if p.device == "cuda" and p.mode == "colocated" and c.value(key) is None:
        summary = "trainer and engine share a GPU, and left alone SGLang takes nearly all of its memory"
        yield c.problem("engine-memory-unset", summary, key, "placement.mode", hint=f"set {key} to 0.4")


def kv_cache(c: Context) -> Iterator[Problem]:
    key = "rollout.sglang.max_total_tokens"
    r, tokens = c.config.rollout, c.config.rollout.sglang.max_total_tokens
    longest = r.max_prompt_tokens + r.max_response_tokens
    if tokens is None and c.config.placement.device == "cpu":
        summary = "the KV cache needs a size on cpu, where SGLang would otherwise take 16 GB of memory"
        hint = f"set {key} to {max(65536, 2 * longest)}"
        yield c.problem("kv-cache-unset", summary, key, "placement.device", hint=hint)
    elif tokens is not None and tokens < longest + 8:
        summary = f"a KV cache of {tokens} tokens cannot hold one sample of {longest}, which would wait for ever"
        keys = (key, "rollout.max_prompt_tokens", "rollout.max_response_tokens")
        yield c.problem("kv-cache-too-small", summary, *keys, hint=f"set {key} to {2 * longest + 8} or more")


RULES = (
    trainer_divisible,
    enough_gpus,
    idle_nodes,
    enough_samples,
    engines_divisible,
    engine_within_node,
    trainer_tp,
    engine_tp,
    layers_divisible,
    expert_parallel,
    context_parallel,
    sequence_parallel,
    transport,
    device_keys,
    attention_backend,
    shared_memory,
    kv_cache,
)
