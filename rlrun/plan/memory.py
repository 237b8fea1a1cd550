"""How many bytes of a GPU each phase of a run takes, in closed forms; arithmetic only, nothing is measured here.

Symbols: P parameters of one rank; b bytes of a weight (2 in bfloat16); t tokens of a micro-batch on one rank.
Everything is for one GPU, at the pipeline stage that needs most.

State (Megatron-core's mixed-precision Adam): weights b*P, float32 gradients 4*P that stay resident, and optimizer 12*P
(float32 master weights and two moments; 8*P when the weights are float32 themselves), which the distributed optimizer
divides over dp x cp for what is not an expert and over the ranks that hold the same experts otherwise. A reference
model is another b*P, a teacher b times its own P; a critic, which takes turns with the policy in the same processes,
has weights, gradients and optimizer of its own, with a scalar in place of the output layer. Context parallelism divides
no weights. So no layout of W GPUs needs less than 18*P/W of the whole model's P, or 6*P/W with the optimizer on the
host.

Activations (`rlrun.plan.activations`) follow what `rlrun.backends.megatron` keeps, which is more than fused kernels
would: every norm keeps a float32 copy beside its output, and the MLP five tensors of its width. For dense Qwen3 this
list was compared with what autograd saves, tensor by tensor (on a CPU, where a norm keeps a second copy that CUDA's
fused kernel does not). Latent attention and gated delta nets use the closed forms for fused kernels. Logits never exist
as a whole, not even in one micro-batch: they are made in pieces of 1024 rows and recomputed backwards, so their peak
does not grow with t and is far below the t*V*8 bytes of an unchunked loss. Expect +-20 %.

SGLang (`rlrun.plan.kv`): weights and KV cache together get `mem_fraction_static` of the GPU. Colocated, trainer and
engine are on the GPU at once, unless one of them is offloaded while the other works:

| phase                | trainer                                 | engine                                        |
|----------------------|-----------------------------------------|-----------------------------------------------|
| train, logprob, save | state and what the phase needs          | all; nothing with rollout.offload             |
| sync                 | state; only weights with trainer.offload | all                                          |
| wake-up              | the same; called so with rollout.offload | only weights: the KV cache follows the push  |
| rollout              | state; nothing with trainer.offload     | all                                           |

The engine's weights are not kept on the host in the meantime: the push brings them. A canary after the push needs what
the trainer kept beside the whole engine.
"""

from __future__ import annotations

from rlrun.plan.activations import activations, largest_layer, logits, whole_logits
from rlrun.plan.host_memory import host_memory
from rlrun.plan.kv import engine_terms, kv_cache
from rlrun.plan.layout import (
    DELTA_WORK,
    ENGINE_OVERHEAD,
    TIGHT,
    TRAINER_OVERHEAD,
    Layout,
    Terms,
    state_bytes_per_parameter,
)
from rlrun.plan.parameters import share, stage_parameters, stage_sizes
from rlrun.plan.types import MemoryPlan, MemoryTerm, PhaseMemory


def state(m: Layout) -> list[Terms]:
    """Weights, gradients, optimizer, reference, critic and teacher of one rank, stage by stage."""
    stages, teacher = [], teacher_bytes(m)
    for stage, (policy, critic) in enumerate(zip(m.parameters(), m.parameters(scalar_head=True), strict=True)):
        whole = sum(policy)
        terms = {
            "weights": m.weight_bytes * whole,
            "gradients": m.gradient_bytes * whole,
            "optimizer": optimizer_bytes(m, policy),
        }
        if m.reference:
            terms["reference"] = terms["weights"]
        if m.critic:
            terms["critic"] = (m.weight_bytes + m.gradient_bytes) * sum(critic)
            terms["critic optimizer"] = optimizer_bytes(m, critic)
        if teacher:
            terms["teacher"] = teacher[stage]
        stages.append(terms)
    return stages


def teacher_bytes(m: Layout) -> list[int]:
    """Weights of the teacher's part of each stage; empty without one."""
    if m.teacher is None:
        return []
    sizes = stage_sizes(m.teacher.num_layers, m.pp)
    return [m.weight_bytes * sum(stage) for stage in stage_parameters(m.teacher, m.tp, sizes, m.ep, m.etp)]


def optimizer_parameters(m: Layout, parameters: tuple[int, int]) -> int:
    """Of (non-expert, expert) parameters, those whose optimizer state this rank has."""
    return sum(share(count, ranks) for count, ranks in zip(parameters, m.shards, strict=True))


def optimizer_bytes(m: Layout, parameters: tuple[int, int]) -> int:
    """Master weights and moments on the GPU."""
    if m.optimizer_offload:
        return 0
    return (m.master_bytes + 2 * m.moment_bytes) * optimizer_parameters(m, parameters)


def floor_bytes(m: Layout) -> int:
    """Bytes of state a GPU that no layout of as many GPUs goes below."""
    return share(state_bytes_per_parameter(m) * m.spec.num_parameters, m.world)


def train_terms(m: Layout, stage: int, base: Terms) -> Terms:
    """The worst of three moments: the loss, the backward pass of a layer, the optimizer's step (whose square roots are
    a float32 copy of its parameters, as is what bfloat16 gradients are turned into)."""
    kept, layer = activations(m, stage)
    moments: list[Terms] = [{"activations": kept, "one layer": layer}]
    if stage == m.pp - 1:
        moments.append({"activations": kept, "logits": logits(m, train=True)})
    if not m.optimizer_offload:
        copies = 4 if m.gradient_bytes == 4 else 8
        moments.append({"optimizer step": copies * optimizer_parameters(m, m.parameters()[stage])})
    return base | max(moments, key=_total)


def logprob_terms(m: Layout, stage: int, base: Terms) -> Terms:
    """A forward pass alone: one layer at a time, then the logits."""
    moments: list[Terms] = [{"one layer": largest_layer(m, stage)}]
    if stage == m.pp - 1:
        moments.append({"logits": logits(m, train=False)})
    return base | max(moments, key=_total)


def save_terms(m: Layout, stage: int, base: Terms) -> Terms:
    """A checkpoint, and the weights as a Hugging Face checkpoint. For the first the distributed optimizer gathers one
    float32 tensor of every parameter after the other (main weights and moments), in one piece on each rank, unless it
    does so on the host."""
    moments: list[Terms] = [{"full tensors": _full_tensors(m)}]
    if m.distributed_optimizer and not m.gather_on_host:
        buffers = zip(m.parameters()[stage], m.shards, strict=True)
        moments.append({"gathered state": max(4 * (count + share(count, ranks)) for count, ranks in buffers)})
    return base | max(moments, key=_total)


def sync_terms(m: Layout, base: Terms) -> Terms:
    """A bucket, and the largest tensor put together from its parts; for a delta also the old one, and what it takes to
    find and to write down what differs."""
    terms = base | {"bucket": m.bucket_bytes, "full tensors": _full_tensors(m)}
    if m.delta_sync:
        terms["delta"] = _full_tensors(m) // 2 + DELTA_WORK
    return terms


def _full_tensors(m: Layout) -> int:
    largest = max(m.spec.vocab_size, 2 * m.spec.ffn_hidden_size) * m.spec.hidden_size
    return 2 * m.weight_bytes * largest


def estimate(m: Layout) -> MemoryPlan:
    """Every phase at its worst pipeline stage."""
    engine, stages = engine_terms(m), state(m)
    own = {"overhead": TRAINER_OVERHEAD + (ENGINE_OVERHEAD if m.colocated else 0)}
    beside = engine if m.colocated and not m.rollout_offload else {}
    waking = m.colocated and m.rollout_offload
    pushing = {"engine weights": engine["engine weights"]} if waking else beside
    kept = ("weights",) if m.colocated and m.trainer_offload else tuple(stages[0])
    staying = [{name: base[name] for name in kept} for base in stages]
    pushes = [sync_terms(m, base) | pushing | own for base in staying]
    if m.colocated and m.canary:  # scored by the trainer's weights and a serving engine
        pushes += [base | engine | own for base in staying]
    rollout = [engine | {"overhead": ENGINE_OVERHEAD}]
    if m.colocated:
        rollout = [({} if m.trainer_offload else base) | engine | own for base in stages]
    found = {
        "train": [train_terms(m, i, base) | beside | own for i, base in enumerate(stages)],
        "logprob": [logprob_terms(m, i, base) | beside | own for i, base in enumerate(stages)],
        "save": [save_terms(m, i, base) | beside | own for i, base in enumerate(stages)],
        "wake-up" if waking else "sync": pushes,
        "rollout": rollout,
    }
    phases = tuple(_phase(name, max(terms, key=_total), m.gpu_bytes) for name, terms in found.items())
    worst = max((phase.verdict for phase in phases), key=("fits", "tight", "does not fit").index)
    return MemoryPlan(
        m.gpu,
        m.gpu_bytes,
        worst,
        phases,
        kv_cache(m),
        host_memory(m),
        whole_logits(m),
        state_bytes_per_parameter(m),
    )


def _total(terms: Terms) -> int:
    return sum(terms.values())


def _phase(name: str, terms: Terms, gpu_bytes: int) -> PhaseMemory:
    total = _total(terms)
    verdict = "does not fit" if total > gpu_bytes else "tight" if total > TIGHT * gpu_bytes else "fits"
    return PhaseMemory(name, verdict, total, tuple(MemoryTerm(k, v) for k, v in terms.items() if v))


def worst_phase(memory: MemoryPlan) -> PhaseMemory:
    """The phase that takes most."""
    return max(memory.phases, key=lambda phase: phase.total_bytes)
