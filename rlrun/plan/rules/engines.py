"""Sizes of the engines of each server group, where their GPUs lie, and the settings they share with the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlrun.config.partial import Unreadable
from rlrun.errors import Problem
from rlrun.plan.context import Context
from rlrun.plan.groups import POLICY, Group, has_engines
from rlrun.plan.placement import divisors, free_gpus, one_of, routed, trainer_slots
from rlrun.plan.rules.server_groups import settings, sglang_of
from rlrun.plan.types import ModelSpec

TRAINER = "placement.trainer"
WIDEST = 64
"""Largest engine that is proposed."""

Place = tuple[int, int]


def engine_shares(spec: ModelSpec, tp: int, dp: int = 1, ep: int = 1) -> dict[str, tuple[int, int]]:
    """What ranks of an engine have equal shares of, as (how many there are, ranks that share). SGLang repeats key/value
    heads when there are more ranks than heads and pads the vocabulary; with data-parallel attention only tp / dp ranks
    share the heads, with expert parallelism tp / ep the columns of an expert."""
    attention = max(1, tp // dp)
    shares = {"attention heads": (spec.num_heads, attention)}
    if spec.mla is None and attention % spec.num_kv_heads:
        shares["key/value heads"] = (spec.num_kv_heads, attention)
    if spec.linear_attention is not None:
        shares["delta net key heads"] = (spec.linear_attention.num_key_heads, attention)
        shares["delta net value heads"] = (spec.linear_attention.num_value_heads, attention)
    if spec.moe is None or spec.moe.first_dense:
        shares["MLP columns"] = (spec.ffn_hidden_size, tp)
    if spec.moe is not None:
        shares["expert columns"] = (spec.moe.ffn_hidden_size, max(1, tp // ep))
        if spec.moe.shared_ffn_hidden_size:
            shares["shared expert columns"] = (spec.moe.shared_ffn_hidden_size, tp)
    return shares


def shares_equally(spec: ModelSpec, tp: int, dp: int = 1, ep: int = 1) -> bool:
    return all(count % ranks == 0 for count, ranks in engine_shares(spec, tp, dp, ep).values())


def places_of(placement: object, count: int) -> list[Place]:
    """(node, GPU) of the first slots; those that the nodes lack lie on imaginary further ones, so that a rule about
    nodes has its say although another one finds GPUs missing."""
    p = placement
    found = free_gpus(p)
    node = p.num_nodes  # type: ignore[attr-defined]
    while len(found) < count:
        found += [(node, gpu) for gpu in range(p.gpus_per_node)]  # type: ignore[attr-defined]
        node += 1
    return found


def lies_well(places: Sequence[Place], per_node: int) -> bool:
    """Whether an engine on these GPUs is on one node, or has all GPUs of each of its nodes."""
    nodes = {node for node, _ in places}
    if len(places) <= per_node:
        return len(nodes) == 1
    return len(places) == len(nodes) * per_node


def fits_nodes(placement: object, first: int, gpus: int, size: int) -> bool:
    """Whether engines of `size` GPUs, laid out from slot `first` on, stay within nodes or have whole ones."""
    p = placement
    places = places_of(p, first + gpus)
    starts = range(first, first + gpus - size + 1, size)
    return all(lies_well(places[s : s + size], p.gpus_per_node) for s in starts)  # type: ignore[attr-defined]


def valid_sizes(c: Context, group: Group) -> list[int]:
    """Engine sizes with which every rule below is content; never empty, because of 1 or the least that pp needs."""
    spec = _spec(c) if group.model == POLICY else None
    inner = group.pp * max(group.dp_attention, group.ep)
    found = []
    for size in divisors(group.gpus):
        tp = size // group.pp
        fits = size % inner == 0 and fits_nodes(c.config.placement, group.first, group.gpus, size)
        if fits and (spec is None or shares_equally(spec, tp, group.dp_attention, group.ep)):
            found.append(size)
    return [size for size in found if size <= WIDEST] or found


def _spec(c: Context) -> ModelSpec | None:
    try:
        return c.spec
    except Unreadable:  # the sizes can be judged without it
        return None


def _sizes_hint(c: Context, group: Group) -> str:
    valid = valid_sizes(c, group)
    if valid:
        return f"set {group.size_key} to {one_of(valid)}"
    inner = group.pp * max(group.dp_attention, group.ep)
    return f"set {group.gpus_key} to {-(-group.gpus // inner) * inner}, or {group.size_key} and {group.pp_key} to 1"


def _own(c: Context) -> Iterator[Group]:
    yield from (group for group in c.groups if group.has_engines)


def engines_divisible(c: Context) -> Iterator[Problem]:
    for group in _own(c):
        if group.gpus % group.size:
            idle = group.gpus % group.size
            summary = f"{group.gpus} rollout GPUs cannot form engines of {group.size}"
            if len(c.groups) > 1:
                summary = f"{group.gpus} GPUs of group {group.name} cannot form engines of {group.size}: {idle} idle"
            yield c.problem("engines-indivisible", summary, group.size_key, group.gpus_key, hint=_sizes_hint(c, group))


def engine_pp(c: Context) -> Iterator[Problem]:
    for group in _own(c):
        if group.size % group.pp:
            summary = f"an engine of {group.size} GPUs cannot form {group.pp} equal pipeline stages"
            hint = f"set {group.pp_key} to {one_of(divisors(group.size))}"
            yield c.problem("engine-pp-indivisible", summary, group.pp_key, group.size_key, hint=hint)
    for group in _own(c):
        if group.model == POLICY and group.pp > c.spec.num_layers:
            summary = f"{group.pp} pipeline stages are more than the model's {c.spec.num_layers} layers"
            yield c.problem("engine-pp-indivisible", summary, group.pp_key, hint=f"set {group.pp_key} to 1")


def engine_dp(c: Context) -> Iterator[Problem]:
    for group in _own(c):
        if group.size % group.pp == 0 and group.tp % group.dp_attention:
            summary = f"{group.dp_attention} data-parallel attention ranks do not divide the engine's tp of {group.tp}"
            hint = f"set {group.dp_key} to {one_of(divisors(group.tp))}"
            yield c.problem("engine-dp-indivisible", summary, group.dp_key, group.size_key, hint=hint)


def engine_ep(c: Context) -> Iterator[Problem]:
    for group in _own(c):
        if group.ep == 1 or group.size % group.pp:
            continue
        moe = c.spec.moe if group.model == POLICY else None
        if group.model == POLICY and moe is None:
            summary = f"expert parallelism divides experts, and family {c.spec.family} has none"
            hint = f"set {group.ep_key} to 1"
            yield c.problem("inactive-key", summary, group.ep_key, "model.family", hint=hint)
        elif group.tp % group.ep or (moe is not None and moe.num_experts % group.ep):
            experts = f", or the {moe.num_experts} experts," if moe is not None else ""
            summary = f"{group.ep} expert-parallel ranks do not divide the engine's tp of {group.tp}{experts} equally"
            valid = [d for d in divisors(group.tp) if moe is None or moe.num_experts % d == 0]
            hint = f"set {group.ep_key} to {one_of(valid)}"
            yield c.problem("engine-ep-indivisible", summary, group.ep_key, group.size_key, hint=hint)


def engine_tp(c: Context) -> Iterator[Problem]:
    seen = set()
    for group in _own(c):
        sizes = (group.tp, group.dp_attention, group.ep)
        if group.model != POLICY or group.size % group.pp or group.tp % group.dp_attention or group.tp % group.ep:
            continue
        if (group.size_key, sizes) in seen:
            continue
        seen.add((group.size_key, sizes))
        uneven = [f"{n} {name}" for name, (n, ranks) in engine_shares(c.spec, *sizes).items() if n % ranks]
        if uneven:
            summary = f"{group.tp} tensor-parallel ranks cannot share {', '.join(uneven)} equally"
            valid = valid_sizes(c, group)
            hint = f"set {group.size_key} to {one_of(valid)}"
            if not valid:
                hint = f"set {group.dp_key} and {group.ep_key} to 1"
            yield c.problem("engine-tp-indivisible", summary, group.size_key, hint=hint)


def engine_within_node(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    for group in _own(c):
        if group.gpus % group.size:
            continue  # engines-indivisible says so
        places = places_of(p, group.first + group.gpus)
        for number, slots in enumerate(group.engines()):
            own = [places[slot] for slot in slots]
            if lies_well(own, p.gpus_per_node):
                continue
            what = f"engine {number}" if len(c.groups) == 1 else f"engine {number} of group {group.name}"
            nodes = sorted({node for node, _ in own})
            summary = (
                f"{what} would have GPUs {slots[0]} to {slots[-1]} (slots), which are on different nodes "
                f"({', '.join(map(str, nodes[:4]))})"
            )
            if group.size > p.gpus_per_node:
                summary += f": an engine larger than a node of {p.gpus_per_node} GPUs has to have whole nodes"
            keys = [group.size_key, "placement.gpus_per_node"]
            if group.first:
                keys.append(f"{TRAINER}.gpus" if group is c.groups[0] else f"{c.groups[0].key}.gpus")
            yield c.problem("engine-crosses-nodes", summary, *keys, hint=_sizes_hint(c, group))
            break


def engine_without_trainer(c: Context) -> Iterator[Problem]:
    """CUDA IPC hands over memory within a node, so each node with an engine needs a trainer rank that has the weights.
    It need not be on the engine's own GPUs: within a node one GPU reads another's memory."""
    p = c.config.placement
    if p.mode != "colocated" or p.device != "cuda" or c.config.weight_sync.transport != "tensor":
        return
    policy = [group for group in _own(c) if group.model == POLICY and group.gpus % group.size == 0]
    places = places_of(p, max([p.trainer.gpus, *(g.first + g.gpus for g in policy)]))
    trained = {places[slot][0] for slot in trainer_slots(p)}
    for group in policy:
        for number, slots in enumerate(group.engines()):
            lacking = sorted({places[slot][0] for slot in slots} - trained)
            if not lacking:
                continue
            summary = (
                f"tensor transport hands over GPU memory within one node, and engine {number} (GPUs {slots[0]} to "
                f"{slots[-1]}) is on node {lacking[0]}, where no trainer rank is: the {p.trainer.gpus} trainer GPUs "
                f"are on {len(trained)} of {p.num_nodes} nodes"
            )
            size = p.trainer.tp * p.trainer.pp * p.trainer.cp
            more = -(-(group.first + group.gpus) // size) * size
            fewer = sum(1 for place in places[group.first : group.first + group.gpus] if place[0] in trained)
            hint = f"set {TRAINER}.gpus to {more}" + (f", or {group.gpus_key} to {fewer}" if fewer else "")
            keys = ("weight_sync.transport", f"{TRAINER}.gpus", group.gpus_key, "placement.gpus_per_node")
            yield c.problem("transport-impossible", summary, *keys, hint=hint)
            return


def enough_requests(c: Context) -> Iterator[Problem]:
    """Engines that would get no request in any step."""
    a = c.config.algo
    samples = a.prompts_per_rollout * a.group_size
    for kinds in (("regular",), ("prefill",), ("decode",)):
        own = [g for g in _own(c) if g.model == POLICY and g.type in kinds]
        engines = sum(group.num_engines for group in own)
        if samples < engines:
            summary = f"a rollout has {samples} samples for {engines} engines"
            keys = ("algo.prompts_per_rollout", "algo.group_size", own[0].gpus_key)
            hint = f"set algo.prompts_per_rollout to {-(-engines // a.group_size)} or more"
            yield c.problem("too-few-samples", summary, *keys, hint=hint)


def attention_backend(c: Context) -> Iterator[Problem]:
    device = c.config.placement.device
    for key, backend in settings(c, "attention_backend"):
        if device == "cpu" and backend not in ("auto", "torch_native"):
            summary = f"attention backend {backend} needs a GPU"
            yield c.problem("attention-backend", summary, key, "placement.device", hint=f"set {key} to auto")
        elif device == "cuda" and backend == "torch_native" and c.config.rollout.seeded:
            summary = "seeded sampling needs an attention backend whose results do not depend on the batch"
            yield c.problem("attention-backend", summary, key, "rollout.seeded", hint=f"set {key} to auto")


def shared_memory(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    if p.device != "cuda" or p.mode != "colocated":
        return
    for key, fraction in settings(c, "mem_fraction_static"):
        if fraction is None:
            summary = "trainer and engine share a GPU, and left alone SGLang takes nearly all of its memory"
            yield c.problem("engine-memory-unset", summary, key, "placement.mode", hint=f"set {key} to 0.4")


def kv_cache(c: Context) -> Iterator[Problem]:
    """Room for one request as long as it may be; of a frozen model only where that was written."""
    r, seen = c.config.rollout, set()
    longest = r.max_prompt_tokens + r.max_response_tokens
    for group in _own(c):
        own = "max_total_tokens" in group.sglang
        key = f"{group.key}.sglang.max_total_tokens" if own else "rollout.sglang.max_total_tokens"
        tokens = sglang_of(c, group).max_total_tokens
        need = longest + 8
        keys: tuple[str, ...] = (key, "rollout.max_prompt_tokens", "rollout.max_response_tokens")
        what, advice = f"one sample of {longest}", f"set {key} to {2 * longest + 8} or more"
        if group.model != POLICY:
            context = f"rollout.models.{group.model}.context_length"
            model = c.config.rollout.models.get(group.model)  # None: unknown-served-model says so
            need = model.context_length or 0 if model is not None else 0
            what, advice = f"one request of {need} tokens", f"set {key} to {need} or more, or {context} to less"
            keys = (key, context)
        if tokens is None and c.config.placement.device == "cpu" and key not in seen:
            summary = "the KV cache needs a size on cpu, where SGLang would otherwise take 16 GB of memory"
            hint = f"set {key} to {max(65536, 2 * longest)}"
            yield c.problem("kv-cache-unset", summary, key, "placement.device", hint=hint)
        elif tokens is not None and tokens < need and (key, keys) not in seen:
            summary = f"a KV cache of {tokens} tokens cannot hold {what}, which would wait for ever"
            yield c.problem("kv-cache-too-small", summary, *keys, hint=advice)
        seen |= {key, (key, keys)}


def cuda_only_overrides(c: Context) -> Iterator[Problem]:
    if c.config.placement.device != "cpu":
        return
    for group in c.groups:
        for name in ("mem_fraction_static", "cuda_graph"):
            if name in group.sglang:
                key = f"{group.key}.sglang.{name}"
                summary = f"{key} does nothing on cpu"
                yield c.problem("inactive-key", summary, key, "placement.device", hint=f"remove {key}")


def router(c: Context) -> Iterator[Problem]:
    p = c.config.placement
    if not has_engines(p) or not c.changed("rollout.router_policy"):
        return  # modes.py says so
    if not routed(c.groups, p.rollout.external):
        key = "rollout.router_policy"
        summary = f"{key} spreads requests over engines, and there is one"
        yield c.problem("inactive-key", summary, key, "placement.rollout.gpus", hint=f"set {key} to round_robin")


RULES = (
    engines_divisible,
    engine_pp,
    engine_dp,
    engine_ep,
    engine_tp,
    engine_within_node,
    engine_without_trainer,
    enough_requests,
    attention_backend,
    shared_memory,
    kv_cache,
    cuda_only_overrides,
    router,
)
