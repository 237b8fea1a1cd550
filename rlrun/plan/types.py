"""What was decided. Frozen, fully resolved, nothing optional that a reader would have to derive; the runtime reads
only this. Built by `rlrun.plan.build`, drawn by `rlrun.plan.render`, never changed afterwards. No heavy imports: a plan
is pickled into every Ray actor and written to the run folder as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MoeSpec:
    """Mixture of experts, in every layer from `first_dense` on."""

    num_experts: int
    experts_per_token: int
    ffn_hidden_size: int  # of one expert
    shared_ffn_hidden_size: int  # of the experts every token passes; 0 without
    shared_gate: bool
    first_dense: int


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention: ranks of the two latents, widths of one head's parts."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True)
class LinearAttentionSpec:
    """Gated delta net in all layers but each `full_interval`-th."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    full_interval: int


@dataclass(frozen=True)
class IndexerSpec:
    """DeepSeek sparse attention's selection of keys; only `full_layers` have weights of their own."""

    num_heads: int
    head_dim: int
    top_k: int
    full_layers: tuple[int, ...]


@dataclass(frozen=True)
class ModelSpec:
    """Architecture in numbers, from the checkpoint's config.json (or `model.architecture` without one)."""

    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tied_embeddings: bool
    num_parameters: int
    qkv_bias: bool = False
    qk_norm: str = "head"  # none | head (one weight for all heads) | full (over all heads at once)
    output_gate: bool = False  # attention output gated by a second half of the query projection
    sandwich_norms: bool = False  # also norms behind attention and MLP
    rotary_fraction: float = 1.0
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    linear_attention: LinearAttentionSpec | None = None
    indexer: IndexerSpec | None = None


@dataclass(frozen=True)
class ModelPlan:
    name: str
    spec: ModelSpec
    init: str  # pretrained | random
    path: str | None  # local directory or Hub id; None when init is random (made in <run_dir>/model)
    alphabet: str | None
    dtype: str  # float32 | bfloat16


@dataclass(frozen=True)
class Slot:
    """One GPU (one process on cpu) by its logical number: node * gpus_per_node + index."""

    index: int
    node: int
    gpu: int


@dataclass(frozen=True)
class TrainPlan:
    """The Megatron side. Rank r lives on slots[r]. Ranks are laid out as Megatron does: tp fastest, then cp, dp, pp."""

    slots: tuple[int, ...]
    tp: int
    pp: int
    cp: int
    dp: int
    backend: str  # gloo | nccl
    threads: int
    batching: str  # packed | padded
    max_tokens_per_gpu: int | None
    micro_batch_size: int | None
    recompute: str  # none | full
    sequence_parallel: bool
    distributed_optimizer: bool
    ep: int = 1


@dataclass(frozen=True)
class OptimizerPlan:
    lr: float
    min_lr: float
    schedule: str  # constant | linear | cosine
    warmup_steps: int
    total_steps: int  # optimizer steps of the whole run
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    clip_grad: float


@dataclass(frozen=True)
class AlgoPlan:
    name: str
    advantage: str
    normalize_by_std: bool
    clip_low: float
    clip_high: float
    loss_aggregation: str  # token_mean | sequence_mean
    kl_coef: float
    kl_estimator: str
    uses_reference: bool
    optimizer: OptimizerPlan


@dataclass(frozen=True)
class BatchPlan:
    """Batch arithmetic of one step of the loop."""

    prompts_per_rollout: int
    group_size: int
    samples_per_rollout: int
    groups_per_step: int
    samples_per_step: int
    optimizer_steps_per_rollout: int
    samples_per_rank: int  # of one optimizer step, when it divides evenly; else the largest share


@dataclass(frozen=True)
class EnginePlan:
    """One SGLang server."""

    index: int
    slots: tuple[int, ...]
    tp: int
    port: int | None  # None: a free one is picked at start
    dist_port: int | None
    threads: int
    attention_backend: str
    mem_fraction_static: float | None
    max_total_tokens: int | None
    max_running_requests: int
    cuda_graph: bool
    log_level: str
    seeded: bool
    context_length: int


@dataclass(frozen=True)
class RouterPlan:
    policy: str
    port: int | None


@dataclass(frozen=True)
class RolloutPlan:
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float
    stop: tuple[str, ...]
    seeded: bool
    request_timeout_s: float
    max_retries: int
    max_concurrent_groups: int


@dataclass(frozen=True)
class DatasetPlan:
    path: str  # absolute
    prompt_key: str
    label_key: str | None
    num_rows: int


@dataclass(frozen=True)
class DataPlan:
    train: DatasetPlan
    eval: DatasetPlan | None
    shuffle: bool
    system_prompt: str | None


@dataclass(frozen=True)
class RewardPlan:
    function: str
    arguments: dict[str, Any]
    timeout_s: float


@dataclass(frozen=True)
class SyncPlan:
    transport: str  # tensor | distributed
    backend: str  # value | cuda_ipc | gloo | nccl
    bucket_bytes: int
    verify: str  # version | canary
    total_bytes: int  # one full copy of the weights


@dataclass(frozen=True)
class EvalPlan:
    interval: int
    before_train: bool
    samples_per_prompt: int
    temperature: float
    max_prompts: int | None


@dataclass(frozen=True)
class CheckpointPlan:
    interval: int | None
    keep: int
    hf_at_end: bool
    digest: bool


@dataclass(frozen=True)
class TrackingPlan:
    uri: str
    experiment: str


@dataclass(frozen=True)
class TimeoutsPlan:
    start_s: float
    generate_s: float
    train_s: float
    sync_s: float
    save_s: float


@dataclass(frozen=True)
class MemoryTerm:
    name: str
    num_bytes: int


@dataclass(frozen=True)
class PhaseMemory:
    """What one GPU holds at the worst moment of a phase."""

    phase: str  # train | logprob | rollout | sync
    verdict: str  # fits | tight | does not fit
    total_bytes: int
    terms: tuple[MemoryTerm, ...]


@dataclass(frozen=True)
class KvPlan:
    """The KV cache of one engine."""

    tokens: int
    bytes_per_token: int  # on one GPU
    samples: int  # of full length, at once


@dataclass(frozen=True)
class MemoryPlan:
    """Estimated GPU memory, worst pipeline stage; see `rlrun.plan.memory`."""

    gpu: str
    gpu_bytes: int
    verdict: str
    phases: tuple[PhaseMemory, ...]
    kv: KvPlan


@dataclass(frozen=True)
class ChangedValue:
    """A value away from the schema's default, and who set it."""

    key: str
    default: Any
    value: Any
    origin: str


@dataclass(frozen=True)
class RunPlan:
    name: str
    experiment: str | None
    seed: int
    num_steps: int
    stop_after: int | None
    output_dir: str  # absolute
    config_hash: str  # 12 hex digits, semantic fields only
    device: str  # cpu | cuda
    num_nodes: int
    gpus_per_node: int
    placement_mode: str  # colocated | disaggregated
    slots: tuple[Slot, ...]
    max_staleness: int
    model: ModelPlan
    train: TrainPlan
    algo: AlgoPlan
    batch: BatchPlan
    engines: tuple[EnginePlan, ...]
    router: RouterPlan | None
    rollout: RolloutPlan
    data: DataPlan
    reward: RewardPlan
    sync: SyncPlan
    eval: EvalPlan | None
    checkpoint: CheckpointPlan
    tracking: TrackingPlan | None
    timeouts: TimeoutsPlan
    changed: tuple[ChangedValue, ...]
    resolved_config: dict[str, Any]
    memory: MemoryPlan | None = None  # on cuda
