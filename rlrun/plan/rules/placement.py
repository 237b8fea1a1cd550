"""The trainer's parallel sizes, how weights travel, and what a device makes meaningless."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.placement import data_parallel, divisors, one_of
from rlrun.plan.types import ModelSpec

TRAINER = "placement.trainer"


def trainer_divisible(c: Context) -> Iterator[Problem]:
    t = c.config.placement.trainer
    size = t.tp * t.pp * t.cp
    if t.gpus % size:
        hint = f"set {TRAINER}.gpus to {-(-t.gpus // size) * size}, a multiple of tp x pp x cp = {size}"
        keys = [f"{TRAINER}.{k}" for k in ("gpus", "tp", "pp", "cp")]
        yield c.problem(
            "trainer-indivisible", f"{t.gpus} trainer GPUs cannot form replicas of {size}", *keys, hint=hint
        )


def enough_samples(c: Context) -> Iterator[Problem]:
    """Trainer replicas that would get nothing to do in any step."""
    a, dp = c.config.algo, data_parallel(c.config.placement)
    step = a.groups_per_step * a.group_size
    if step < dp:
        summary = f"an optimizer step has {step} samples for {dp} data-parallel replicas of the trainer"
        keys = ("algo.groups_per_step", "algo.group_size", f"{TRAINER}.gpus")
        hint = f"set algo.groups_per_step to {-(-dp // a.group_size)} or more"
        yield c.problem("too-few-samples", summary, *keys, hint=hint)


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


def trainer_tp(c: Context) -> Iterator[Problem]:
    tp = c.config.placement.trainer.tp
    yield from _tp_problem(c, "tp-indivisible", f"{TRAINER}.tp", tp, trainer_tp_sizes(c.spec, tp))


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
        "placement.cpus_per_node",
        "placement.reserved",
    )
    cpu_only = ("placement.trainer_threads", "placement.engine_threads")
    device = c.config.placement.device
    for key in cpu_only if device == "cuda" else cuda_only:
        if c.changed(key):
            default = show(all_keys()[key].default)
            summary = f"{key} does nothing on {device}"
            yield c.problem("inactive-key", summary, key, "placement.device", hint=f"set {key} to {default}")


RULES = (
    trainer_divisible,
    enough_samples,
    trainer_tp,
    layers_divisible,
    expert_parallel,
    context_parallel,
    sequence_parallel,
    transport,
    device_keys,
)
