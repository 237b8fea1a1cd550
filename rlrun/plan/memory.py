"""How many bytes of a GPU each phase of a run takes, in closed forms; arithmetic only, nothing is measured here.

Symbols: P parameters of one rank; b bytes of a weight (2 in bfloat16); t tokens of a micro-batch; h hidden width; V
vocabulary; q and k widths of all query and of all key heads; I MLP width. Everything is for one GPU, at the pipeline
stage that needs most.

State (Megatron-core's mixed-precision Adam): weights b*P, float32 gradients 4*P that stay resident, and optimizer
12*P (float32 master weights and two moments; 8*P when the weights are float32 themselves), which the distributed
optimizer divides over dp x cp for what is not an expert and over the ranks that hold the same experts otherwise. A
reference model is another b*P. Context parallelism divides no weights.

Activations follow what `rlrun.backends.megatron` keeps, which is more than fused kernels would: every norm keeps a
float32 copy beside its output, and the MLP five tensors of its width. For dense Qwen3 this list was compared with what
autograd saves, tensor by tensor (on a CPU, where a norm keeps a second copy that CUDA's fused kernel does not). Latent
attention and gated delta nets use the closed forms for fused kernels. Logits never exist as a whole, not even in one
micro-batch: they are made in pieces of 1024 rows and recomputed backwards, so their peak does not grow with t and is
far below the t*V*8 bytes of an unchunked loss. Expect +-20 %.

SGLang: weights and KV cache together get `mem_fraction_static` of the GPU, and are there all the time: nothing is
offloaded between phases, so a colocated GPU holds trainer and engine at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.parameters import is_linear, is_sparse, share, stage_layers, stage_parameters
from rlrun.plan.types import KvPlan, MemoryPlan, MemoryTerm, ModelSpec, PhaseMemory

GIB = 2**30

GPUS = {"a100_40gb": 39.4, "a100_80gb": 79.1, "h100_80gb": 79.1, "h200_141gb": 140.4}
"""GiB that the driver shows of each kind; an H200 shows 143771 MiB."""

TRAINER_OVERHEAD = 3 * GIB
"""Allowance for CUDA context, NCCL buffers and kernels' workspace of a trainer process."""

ENGINE_OVERHEAD = 3 * GIB
"""Allowance for an engine's CUDA context, graphs and working memory, outside of mem_fraction_static."""

DEFAULT_FRACTION = 0.85
"""What SGLang takes for weights and KV cache when mem_fraction_static is left to it; it depends on the GPU."""

HOST_PROCESS = 4 * GIB
"""Allowance for the host memory of one trainer or engine process: Python, torch, CUDA, pinned buffers."""

TIGHT = 0.9
"""Above this share of a GPU a run may still end out of memory: by fragmentation (about 5 %) or by these estimates."""

LOGIT_ROWS = 1024
"""Rows of `rlrun.backends.megatron.logprobs.ROWS`, repeated here because that module imports torch."""

LOGIT_BYTES = 21
"""Bytes a logit takes at the worst moment: float32 logits, shifted, exponentials, product and selection for the
entropy, and a mask of one byte (21.1 when the live tensors were counted). The backward pass needs less."""

EXPERT_SKEW = 1.5
"""Head-room on the tokens that an expert-parallel rank receives: routing is not balanced."""

INDEX_CACHE = 132
"""Bytes of a token and layer that SGLang keeps for a sparse attention's indexer: 128 in FP8 and a float32 scale."""


@dataclass(frozen=True)
class Layout:
    """All that decides the bytes of a GPU."""

    spec: ModelSpec
    gpu: str
    weight_bytes: int
    colocated: bool
    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    max_tokens: int | None  # packed: cap of a micro-batch
    micro_batch_size: int | None  # padded: its samples
    recompute: bool
    sequence_parallel: bool
    distributed_optimizer: bool
    reference: bool
    engine_tp: int
    mem_fraction: float | None
    max_total_tokens: int | None
    sample_tokens: int  # longest prompt and response
    bucket_bytes: int
    engine_pp: int = 1
    engine_dp: int = 1  # data-parallel attention ranks of an engine

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch: a sample longer than the cap goes alone."""
        if self.micro_batch_size is not None:
            return self.micro_batch_size * self.sample_tokens
        return max(self.max_tokens or 0, self.sample_tokens)

    @property
    def gpu_bytes(self) -> int:
        return int(GPUS[self.gpu] * GIB)


Terms = dict[str, int]


def state(m: Layout) -> list[Terms]:
    """Weights, gradients, optimizer and reference of one rank, stage by stage."""
    ranks = m.dp * m.cp * m.tp  # of one stage
    plain_parts, expert_parts = (m.dp * m.cp, max(1, ranks // m.ep)) if m.distributed_optimizer else (1, 1)
    adam = 12 if m.weight_bytes < 4 else 8
    stages = []
    for plain, experts in stage_parameters(m.spec, m.tp, m.pp, m.ep):
        terms = {
            "weights": m.weight_bytes * (plain + experts),
            "gradients": 4 * (plain + experts),
            "optimizer": adam * (share(plain, plain_parts) + share(experts, expert_parts)),
        }
        if m.reference:
            terms["reference"] = terms["weights"]
        stages.append(terms)
    return stages


def layer_bytes(m: Layout, layer: int) -> int:
    """Bytes a token that one layer keeps for its backward pass, on one rank."""
    spec, b = m.spec, m.weight_bytes
    norms = (4 if spec.sandwich_norms else 2) * (4 + b) * spec.hidden_size  # a float32 copy and the output
    inner = b * _mlp_width(spec, layer) + _mixer_bytes(spec, layer, b)
    # Cosines and sines of a head, for queries and for keys, are made in every layer.
    rotary = 4 * b * (spec.mla.rope_dim if spec.mla else spec.head_dim)
    return share(norms, m.tp if m.sequence_parallel else 1) + share(inner, m.tp) + rotary


def _mixer_bytes(spec: ModelSpec, layer: int, b: int) -> int:
    if is_linear(spec, layer):
        g = spec.linear_attention
        assert g is not None
        q, v = g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim
        return b * (2 * (2 * q + v) + g.num_value_heads * (4 * g.key_dim + 3 * g.value_dim))
    if spec.mla is not None:
        m = spec.mla
        heads = spec.num_heads * (2 * (m.nope_dim + m.rope_dim) + 2 * m.v_dim)
        return b * (2 * m.q_rank + 2 * (m.kv_rank + m.rope_dim) + heads)
    q, k = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    normed = 4 * (q + k) if spec.qk_norm != "none" else 0
    # The projection, of which v is a view; rotated q and k; the output of the kernel and its copy, end to end.
    kept = (q + 2 * k) + (q + k) + 2 * q
    return normed + b * (kept + (2 * q if spec.output_gate else 0))


def _mlp_width(spec: ModelSpec, layer: int) -> int:
    """Values a token: both halves of the first projection, silu of one, the other with Megatron's offset, and their
    product."""
    if not is_sparse(spec, layer):
        return 5 * spec.ffn_hidden_size
    moe = spec.moe
    assert moe is not None
    routed = moe.experts_per_token * (2 * spec.hidden_size + 5 * moe.ffn_hidden_size)
    return int(EXPERT_SKEW * routed) + 5 * moe.shared_ffn_hidden_size


def activations(m: Layout, stage: int) -> tuple[int, int]:
    """(bytes kept between forward and backward pass, bytes of the layer that is being recomputed).

    A stage of the 1F1B schedule holds up to pp - stage micro-batches.
    """
    layers = [layer_bytes(m, layer) * m.tokens for layer in stage_layers(m.spec, m.pp, stage)]
    if not m.recompute:
        return (m.pp - stage) * sum(layers), 0
    width = share(m.spec.hidden_size, m.tp if m.sequence_parallel else 1)
    return (m.pp - stage) * len(layers) * m.weight_bytes * width * m.tokens, max(layers, default=0)


def logits(m: Layout, train: bool) -> int:
    """Bytes at the worst moment of the log-probs, on the last stage: a piece of the logits, the final hidden states
    (float32 copy, output, selected rows and their gradient) and the output layer's gradient being summed up."""
    columns, h, b = share(m.spec.vocab_size, m.tp), m.spec.hidden_size, m.weight_bytes
    piece = LOGIT_BYTES * min(LOGIT_ROWS, m.tokens) * columns
    return piece + (4 + 4 * b) * h * m.tokens + (2 * b * columns * h if train else 0)


def train_terms(m: Layout, stage: int, base: Terms) -> Terms:
    """The worst of three moments: the loss, the backward pass of a layer, the optimizer's step (whose square roots are
    a float32 copy of its parameters)."""
    kept, layer = activations(m, stage)
    moments: list[Terms] = [{"activations": kept, "one layer": layer}]
    if stage == m.pp - 1:
        moments.append({"activations": kept, "logits": logits(m, train=True)})
    moments.append({"optimizer step": base["optimizer"] // (3 if m.weight_bytes < 4 else 2)})
    return base | max(moments, key=lambda terms: sum(terms.values()))


def logprob_terms(m: Layout, stage: int, base: Terms) -> Terms:
    """A forward pass alone: one layer at a time, then the logits."""
    layers = [layer_bytes(m, layer) * m.tokens for layer in stage_layers(m.spec, m.pp, stage)]
    moments: list[Terms] = [{"one layer": max(layers, default=0)}]
    if stage == m.pp - 1:
        moments.append({"logits": logits(m, train=False)})
    return base | max(moments, key=lambda terms: sum(terms.values()))


def sync_terms(m: Layout, base: Terms) -> Terms:
    """A bucket, and the largest tensor put together from its parts."""
    spec = m.spec
    largest = max(spec.vocab_size, 2 * spec.ffn_hidden_size) * spec.hidden_size
    return base | {"bucket": m.bucket_bytes, "full tensors": 2 * m.weight_bytes * largest}


def kv_bytes_per_token(spec: ModelSpec, tp: int, b: int = 2) -> int:
    """Bytes of the KV cache a token, on one of an engine's GPUs. A latent cache is not divided by tp; a gated delta net
    has none."""
    if spec.mla is not None:
        index = INDEX_CACHE if spec.indexer is not None else 0
        return spec.num_layers * ((spec.mla.kv_rank + spec.mla.rope_dim) * b + index)
    full = sum(not is_linear(spec, layer) for layer in range(spec.num_layers))
    return full * 2 * max(1, spec.num_kv_heads // tp) * spec.head_dim * b


def state_bytes_per_request(spec: ModelSpec, tp: int) -> int:
    """Bytes of a request whatever its length: recurrent state (float32) and convolution inputs of gated delta nets."""
    g = spec.linear_attention
    if g is None:
        return 0
    q, v = g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim
    one = g.num_value_heads * g.key_dim * g.value_dim * 4 + (2 * q + v) * (g.conv_kernel - 1) * 2
    return sum(is_linear(spec, layer) for layer in range(spec.num_layers)) * share(one, tp)


def engine_weights(m: Layout) -> int:
    """Bytes of the weights on one of an engine's GPUs, at its worst stage; they divide experts as everything else.
    Data-parallel attention has its heads once for each of its ranks; counted as if all plain weights were."""
    stages = stage_parameters(m.spec, max(1, m.engine_tp // m.engine_dp), m.engine_pp, m.engine_tp)
    return m.weight_bytes * max(plain + experts for plain, experts in stages)


def kv_cache(m: Layout) -> KvPlan:
    """What is left of the engine's share beside its weights, at most max_total_tokens."""
    heads = max(1, m.engine_tp // m.engine_dp)  # ranks that share the heads
    each = share(kv_bytes_per_token(m.spec, heads, m.weight_bytes), m.engine_pp)
    pool = max(0, int((m.mem_fraction or DEFAULT_FRACTION) * m.gpu_bytes) - engine_weights(m))
    request = each * m.sample_tokens + state_bytes_per_request(m.spec, m.engine_tp)
    tokens = m.engine_dp * pool * m.sample_tokens // request  # what a pool shared with the requests' state holds
    if m.max_total_tokens is not None:
        tokens = min(tokens, m.max_total_tokens)
    return KvPlan(tokens, each, tokens // m.sample_tokens)


def engine_terms(m: Layout) -> Terms:
    """Weights and KV cache of an engine on one GPU, resident in every phase."""
    kv = kv_cache(m)
    per_request = share(kv.tokens, m.sample_tokens) * state_bytes_per_request(m.spec, m.engine_tp)
    cache = share(kv.tokens * kv.bytes_per_token + per_request, m.engine_dp)
    return {"engine weights": engine_weights(m), "KV cache": cache}


def estimate(m: Layout) -> MemoryPlan:
    """Every phase at its worst pipeline stage."""
    engine = engine_terms(m)
    beside = engine if m.colocated else {}
    own = {"overhead": TRAINER_OVERHEAD + (ENGINE_OVERHEAD if m.colocated else 0)}
    stages = state(m)
    train, logprob, sync = (
        [terms | beside | own for terms in found]
        for found in (
            [train_terms(m, i, base) for i, base in enumerate(stages)],
            [logprob_terms(m, i, base) for i, base in enumerate(stages)],
            [sync_terms(m, base) for base in stages],
        )
    )
    rollout = [base | engine | own for base in stages] if m.colocated else [engine | {"overhead": ENGINE_OVERHEAD}]
    phases = tuple(
        _phase(name, max(found, key=lambda terms: sum(terms.values())), m.gpu_bytes)
        for name, found in (("train", train), ("logprob", logprob), ("rollout", rollout), ("sync", sync))
    )
    worst = max((phase.verdict for phase in phases), key=("fits", "tight", "does not fit").index)
    return MemoryPlan(m.gpu, m.gpu_bytes, worst, phases, kv_cache(m))


def _phase(name: str, terms: Terms, gpu_bytes: int) -> PhaseMemory:
    total = sum(terms.values())
    verdict = "does not fit" if total > gpu_bytes else "tight" if total > TIGHT * gpu_bytes else "fits"
    return PhaseMemory(name, verdict, total, tuple(MemoryTerm(k, v) for k, v in terms.items() if v))


def worst_phase(memory: MemoryPlan) -> PhaseMemory:
    """The phase that takes most."""
    return max(memory.phases, key=lambda phase: phase.total_bytes)


def host_bytes(m: Layout, gpus_per_node: int, processes: int) -> int:
    """Bytes of host memory that a node needs at most: its processes, and, while a checkpoint is saved, the optimizer
    state that each model-parallel rank's first data-parallel replica collects. Nothing is offloaded."""
    adam = 12 if m.weight_bytes < 4 else 8
    largest = max(plain + experts for plain, experts in stage_parameters(m.spec, m.tp, m.pp, m.ep))
    return HOST_PROCESS * processes + min(gpus_per_node, m.tp * m.pp * m.ep) * adam * largest
