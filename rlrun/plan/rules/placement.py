"""The trainer's parallel sizes, how weights travel, and what a device makes meaningless."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.errors import Problem
from rlrun.plan.batch import largest_step
from rlrun.plan.context import Context
from rlrun.plan.parameters import is_even, stage_sizes, stage_starts
from rlrun.plan.placement import data_parallel, divisors, one_of
from rlrun.plan.types import ModelSpec

TRAINER = "placement.trainer"
FIRST, LAST = f"{TRAINER}.first_stage_layers", f"{TRAINER}.last_stage_layers"


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
    step = largest_step(c.config) * a.group_size
    if step < dp:
        summary = f"an optimizer step has {step} samples for {dp} data-parallel replicas of the trainer"
        keys = ("algo.groups_per_step", "algo.group_size", f"{TRAINER}.gpus")
        key = "algo.groups_per_step" if a.groups_per_step is not None else "algo.prompts_per_rollout"
        hint = f"set {key} to {-(-dp // a.group_size)} or more"
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


def pipeline_stages(c: Context) -> Iterator[Problem]:
    """Layers of the stages: equal parts, but for what the first and the last stage are given."""
    t, layers = c.config.placement.trainer, c.spec.num_layers
    given = {key: c.value(key) for key in (FIRST, LAST)}
    set_keys = [key for key, value in given.items() if value is not None]
    if t.pp == 1:
        for key in set_keys:
            summary = f"{key.rsplit('.', 1)[1]} shapes a pipeline of several stages, and there is one"
            yield c.problem("inactive-key", summary, key, f"{TRAINER}.pp", hint=f"set {key} to null")
        return
    sizes = stage_sizes(layers, t.pp, *given.values())
    if is_even(layers, t.pp, *given.values()):
        yield from _stages_without_indexer(c, sizes)
    elif set_keys:
        first, last = uneven_stages(layers, t.pp) or (None, None)
        summary = f"{layers} layers cannot form {t.pp} stages {_given(t)}the rest with equally many"
        hint = f"set {FIRST} to {first} and {LAST} to {last}"
        yield c.problem("layers-indivisible", summary, f"{TRAINER}.pp", *set_keys, hint=hint)
    else:
        split = uneven_stages(layers, t.pp)
        hint = f"set {TRAINER}.pp to {one_of(divisors(layers))}"
        if split is not None:
            hint += f", or {FIRST} to {split[0]} and {LAST} to {split[1]}"
        yield c.problem("layers-indivisible", f"{layers} layers cannot form {t.pp} equal stages", f"{TRAINER}.pp",
                        hint=hint)  # fmt: skip


def _given(trainer: object) -> str:
    """`with 3 layers on the first, `."""
    named = (("first", "first_stage_layers"), ("last", "last_stage_layers"))
    found = [(where, getattr(trainer, name)) for where, name in named]
    parts = [f"{size} layers on the {where}" for where, size in found if size is not None]
    return f"with {' and '.join(parts)}, " if parts else ""


def _stages_without_indexer(c: Context, sizes: list[int]) -> Iterator[Problem]:
    """A layer that shares the selection of keys needs the one that made it in its own stage."""
    indexer, pp = c.spec.indexer, c.config.placement.trainer.pp
    if indexer is None:
        return
    bad = [start for start in stage_starts(sizes) if start not in indexer.full_layers]
    if bad:
        split = uneven_stages(c.spec.num_layers, pp, indexer.full_layers)
        hint = f"set {TRAINER}.pp to 1"
        if split is not None:
            hint = f"set {FIRST} to {split[0]} and {LAST} to {split[1]}"
        summary = (
            f"a pipeline stage would start at layer {bad[0]}, which shares the selection of keys of an earlier layer; "
            f"stages of {', '.join(map(str, sizes))} layers"
        )
        yield c.problem("stage-without-indexer", summary, f"{TRAINER}.pp", FIRST, LAST, hint=hint)


def uneven_stages(layers: int, pp: int, starts: Collection[int] | None = None) -> tuple[int, int] | None:
    """(first, last) with which the stages come out, as equal as possible; each starts at one of `starts`, if given."""
    found = []
    for first in range(1, layers):
        for last in range(1, layers - first + 1):
            if is_even(layers, pp, first, last):
                sizes = stage_sizes(layers, pp, first, last)
                if starts is None or all(start in starts for start in stage_starts(sizes)):
                    found.append((max(sizes) - min(sizes), -first, first, last))
    return min(found)[2:] if found else None


def expert_parallel(c: Context) -> Iterator[Problem]:
    t, moe = c.config.placement.trainer, c.spec.moe
    if moe is None:
        for name, key in (("expert parallelism", f"{TRAINER}.ep"), ("expert tensor parallelism", f"{TRAINER}.etp")):
            if c.changed(key):
                summary = f"{name} divides experts, and family {c.spec.family} has none"
                yield c.problem("inactive-key", summary, key, "model.family", hint=f"set {key} to 1")
        return
    ranks = t.gpus // t.pp
    if moe.ffn_hidden_size % t.etp:
        valid = [d for d in divisors(moe.ffn_hidden_size) if ranks % (d * t.ep) == 0] or [1]
        summary = f"{t.etp} ranks cannot share the {moe.ffn_hidden_size} columns of an expert equally"
        yield c.problem("ep-indivisible", summary, f"{TRAINER}.etp", hint=f"set {TRAINER}.etp to {one_of(valid[:8])}")
    elif moe.num_experts % t.ep or ranks % (t.ep * t.etp):
        valid = [d for d in divisors(ranks) if moe.num_experts % d == 0 and ranks % (d * t.etp) == 0]
        of = f" of {t.etp} each" if t.etp > 1 else ""
        summary = (
            f"{t.ep} expert-parallel ranks{of} cannot share {moe.num_experts} experts, or {ranks} ranks of a stage"
        )
        keys = [f"{TRAINER}.ep", *([f"{TRAINER}.etp"] if t.etp > 1 else []), f"{TRAINER}.gpus", f"{TRAINER}.pp"]
        hint = f"set {TRAINER}.ep to {one_of(valid)}" if valid else f"set {TRAINER}.etp to 1"
        yield c.problem("ep-indivisible", summary, *keys, hint=hint)


def context_parallel(c: Context) -> Iterator[Problem]:
    if c.config.placement.trainer.cp > 1 and c.spec.linear_attention is not None:
        summary = "a gated delta net runs through a sample token by token, and context parallelism would cut it"
        yield c.problem("cp-unsupported", summary, f"{TRAINER}.cp", "model.family", hint=f"set {TRAINER}.cp to 1")


def sequence_parallel(c: Context) -> Iterator[Problem]:
    if c.config.trainer.sequence_parallel and c.config.placement.trainer.tp == 1:
        summary = "sequence_parallel splits activations between tensor-parallel ranks, and there is one"
        keys = ("trainer.sequence_parallel", f"{TRAINER}.tp")
        yield c.problem("inactive-key", summary, *keys, hint="set trainer.sequence_parallel to false")


def sequence_parallel_experts(c: Context) -> Iterator[Problem]:
    """Megatron refuses to train experts under tensor parallelism without it."""
    tp, moe = c.config.placement.trainer.tp, c.spec.moe
    if moe is not None and tp > 1 and not c.config.trainer.sequence_parallel:
        summary = f"experts under tensor parallelism (tp {tp}) need sequence_parallel, or Megatron does not train them"
        keys = ("trainer.sequence_parallel", f"{TRAINER}.tp", "model.family")
        yield c.problem("sequence-parallel-needed", summary, *keys, hint="set trainer.sequence_parallel to true")


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
        "trainer.optimizer_dtype",
        "trainer.optimizer_offload",
        "placement.cpus_per_node",
        "placement.reserved",
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


RULES = (
    trainer_divisible,
    enough_samples,
    trainer_tp,
    pipeline_stages,
    expert_parallel,
    context_parallel,
    sequence_parallel,
    sequence_parallel_experts,
    transport,
    device_keys,
)
