"""What a user may write, key by key. Unknown keys are refused, values are never coerced, and the docstring under a
field is its documentation (`rlrun explain`). Rules that span several keys live in `rlrun.plan.checks`.

Imports nothing heavier than pydantic.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
NotEmpty = Annotated[str, Field(pattern=r"\S")]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

NOT_SEMANTIC: dict[str, Any] = {"semantic": False}
"""Marks fields that do not change what is learned; they stay out of the config hash."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


class ArchitectureConfig(Section):
    """Expected architecture, in the spelling of a Hugging Face config.json. With `model.path` set, every value given
    here is compared with the checkpoint's own config.json; without weights on disk the plan is made from it. Each
    family has fields of its own: those it needs have to be given, those it does not have are refused."""

    hidden_size: Positive
    """Width of the residual stream."""
    num_hidden_layers: Positive
    """Transformer layers."""
    num_attention_heads: Positive
    """Query heads."""
    num_key_value_heads: Positive
    """Key/value heads (grouped-query attention)."""
    head_dim: Positive | None = None
    """Width of one head; not hidden_size / num_attention_heads in Qwen3. Not for latent attention (MLA)."""
    intermediate_size: Positive | None = None
    """Width of the SwiGLU MLP of dense layers."""
    vocab_size: Positive
    """Rows of the embedding."""
    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    """Epsilon of every RMSNorm."""
    rope_theta: Annotated[float, Field(gt=0)] = 1e6
    """Base of the rotary embedding."""
    max_position_embeddings: Positive = 40960
    """Longest sequence the model was made for, in tokens."""
    tie_word_embeddings: bool = False
    """Whether the output layer is the embedding."""
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of a head that is rotated (MiniMax: rotary_dim / head_dim)."""
    attention_bias: bool | None = None
    """Biases of the query, key and value projections (GLM)."""
    use_qk_norm: bool | None = None
    """RMSNorm on every head's query and key (glm4_moe)."""
    num_experts: Positive | None = None
    """Routed experts of a layer (n_routed_experts in GLM, num_local_experts in MiniMax)."""
    num_experts_per_tok: Positive | None = None
    """Experts that a token is sent to."""
    moe_intermediate_size: Positive | None = None
    """Width of one expert (intermediate_size in MiniMax)."""
    shared_expert_intermediate_size: Positive | None = None
    """Width of the gated expert that every token passes (Qwen3.5)."""
    n_shared_experts: Positive | None = None
    """Experts that every token passes, each moe_intermediate_size wide (GLM)."""
    first_k_dense_replace: NonNegative | None = None
    """First layers that have a dense MLP instead of experts (GLM)."""
    full_attention_interval: Positive | None = None
    """Each so-manieth layer has full attention, the others a gated delta net (Qwen3.5)."""
    linear_num_key_heads: Positive | None = None
    """Key heads of a gated delta net."""
    linear_num_value_heads: Positive | None = None
    """Value heads of a gated delta net."""
    linear_key_head_dim: Positive | None = None
    """Width of a key head of a gated delta net."""
    linear_value_head_dim: Positive | None = None
    """Width of a value head of a gated delta net."""
    linear_conv_kernel_dim: Positive | None = None
    """Tokens that a gated delta net's convolution sees."""
    q_lora_rank: Positive | None = None
    """Width of the query latent (MLA)."""
    kv_lora_rank: Positive | None = None
    """Width of the key/value latent (MLA), which is what the KV cache holds."""
    qk_nope_head_dim: Positive | None = None
    """Part of a query or key head without rotation (MLA)."""
    qk_rope_head_dim: Positive | None = None
    """Rotated part of a query or key head (MLA)."""
    v_head_dim: Positive | None = None
    """Width of a value head (MLA)."""
    index_n_heads: Positive | None = None
    """Heads of the sparse attention's indexer."""
    index_head_dim: Positive | None = None
    """Width of an indexer head."""
    index_topk: Positive | None = None
    """Keys that a query attends to."""
    index_topk_freq: Positive | None = None
    """Layers that share one selection of keys; 1 when each has its own."""
    index_skip_topk_offset: NonNegative | None = None
    """First layers that all have their own selection, before sharing starts."""


class ModelConfig(Section):
    name: str = Field(json_schema_extra=NOT_SEMANTIC)
    """Label used in reports."""
    family: Literal[
        "qwen3",
        "qwen3_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "glm4",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "minimax_m2",
    ]
    """Which weight mapping and layer spec to use. All can be planned; this version runs qwen3."""
    path: str | None = None
    """Local directory of a Hugging Face checkpoint, or a Hub id (org/name). Null only with init=random."""
    init: Literal["pretrained", "random"] = "pretrained"
    """pretrained reads `path`; random makes a checkpoint from `architecture` and `seed` inside the run folder."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of weights and activations; auto is float32 on cpu and bfloat16 on cuda."""
    alphabet: str | None = None
    """Characters of the character-level tokenizer made for init=random."""
    architecture: ArchitectureConfig
    """Shape of the network."""


class AlgoConfig(Section):
    name: str = Field(json_schema_extra=NOT_SEMANTIC)
    """Label used in reports."""
    advantage: Literal["grpo"] = "grpo"
    """Advantage estimator. grpo: reward minus the group's mean, optionally over its standard deviation."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation (false is Dr.GRPO)."""
    group_size: Positive = 8
    """Samples drawn for each prompt."""
    prompts_per_rollout: Positive = 64
    """Prompts drawn for each step of the loop."""
    groups_per_step: Positive = 64
    """Prompt groups in one optimizer step; divides prompts_per_rollout."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """The policy ratio is clipped above at 1 + clip_high."""
    loss_aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Weight of a token in the loss: the same for every token, or the same for every sample."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL penalty to the reference model (the initial weights) in the loss; 0 loads no reference."""
    kl_estimator: Literal["k1", "k2", "k3", "low_var"] = "low_var"
    """Estimator of that KL, from the sampled tokens. low_var is k3 clamped to [-10, 10]."""
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after the warm-up, over all optimizer steps of the run."""
    lr_warmup_steps: NonNegative = 0
    """Optimizer steps of linear warm-up."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Floor of a decaying schedule."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW weight decay (not applied to norms and biases)."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """AdamW beta 1."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """AdamW beta 2."""
    adam_eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW epsilon."""
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """Largest global gradient norm; 0 turns clipping off."""


class SglangConfig(Section):
    """Settings of each SGLang server. Ports, model path and parallel sizes come from the plan."""

    attention_backend: Literal["auto", "torch_native", "triton", "fa3", "flashinfer"] = "auto"
    """auto is torch_native on cpu and triton on cuda."""
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of a GPU for weights and KV cache; cuda only. Null lets SGLang decide."""
    max_total_tokens: Positive | None = None
    """Size of the KV cache in tokens; required on cpu, where SGLang would take 16 GB."""
    max_running_requests: Positive = 64
    """Requests decoded together in one engine."""
    cuda_graph: bool = False
    """Capture CUDA graphs for decoding; cuda only. Faster decoding, slower start."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Level of the server's log file in the run folder."""


class RolloutConfig(Section):
    max_prompt_tokens: Positive = 1024
    """Longest prompt after the chat template; longer ones are an error, named by row."""
    max_response_tokens: Positive = 1024
    """Most tokens generated for one sample."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature; the trainer divides its logits by the same value."""
    stop: list[str] = []
    """Strings that end a sample, beside the end-of-sequence token."""
    seeded: bool = False
    """Give every request its own seed, derived from seed, step and sample, so that a run can be repeated."""
    request_timeout_s: Seconds = Field(default=600.0, json_schema_extra=NOT_SEMANTIC)
    """Deadline of one request; a request that misses it is retried."""
    max_retries: NonNegative = Field(default=3, json_schema_extra=NOT_SEMANTIC)
    """Times a failed request is sent again before the run fails."""
    max_concurrent_groups: Positive = Field(default=256, json_schema_extra=NOT_SEMANTIC)
    """Prompt groups in flight at once."""
    router_policy: Literal["round_robin", "cache_aware", "random"] = Field(
        default="round_robin", json_schema_extra=NOT_SEMANTIC
    )
    """How sglang-router spreads requests when there is more than one engine."""
    port: Annotated[int, Field(ge=1024, le=65535)] | None = Field(default=None, json_schema_extra=NOT_SEMANTIC)
    """First port of the engines and the router, which take consecutive ones; null picks free ports."""
    sglang: SglangConfig = Field(default=SglangConfig(), json_schema_extra=NOT_SEMANTIC)


class DatasetConfig(Section):
    path: str
    """JSONL file, one object a line."""
    prompt_key: str = "prompt"
    """Field with the prompt: a string, or a list of {role, content} messages."""
    label_key: str | None = "label"
    """Field handed to the reward function as `label`."""


class DataConfig(Section):
    train: DatasetConfig
    """Prompts to learn from."""
    eval: DatasetConfig | None = None
    """Prompts to measure on; needs eval.interval."""
    shuffle: bool = True
    """Reshuffle the training prompts each epoch, by seed and epoch."""
    system_prompt: str | None = None
    """System message put before every prompt given as a string."""


class RewardConfig(Section):
    function: ImportPath
    """Reward function as package.module:name, called as f(prompt, response_text, label, **arguments) -> float."""
    arguments: dict[str, Any] = {}
    """Keyword arguments passed to it."""
    timeout_s: Seconds = Field(default=60.0, json_schema_extra=NOT_SEMANTIC)
    """Deadline of one call."""


class TrainerPlacement(Section):
    gpus: Positive = 8
    """GPUs of the trainer (slots, one process each, on cpu)."""
    tp: Positive = 1
    """Tensor-parallel size."""
    pp: Positive = 1
    """Pipeline-parallel size."""
    cp: Positive = 1
    """Context-parallel size."""
    ep: Positive = 1
    """Expert-parallel size, in the plan of a mixture-of-experts model; nothing runs with it yet."""


class RolloutPlacement(Section):
    gpus: Positive = 8
    """GPUs of the engines together (slots on cpu)."""
    gpus_per_engine: Positive = 1
    """GPUs of one engine, its tensor-parallel size."""


class PlacementConfig(Section):
    name: str
    """Label used in reports."""
    device: Literal["cpu", "cuda"] = "cuda"
    """cpu runs the same engines with gloo and float32; a slot is then a process."""
    num_nodes: Positive = 1
    """Machines."""
    gpus_per_node: Positive = 8
    """GPUs of one machine (slots on cpu)."""
    gpu: Literal["a100_40gb", "a100_80gb", "h100_80gb", "h200_141gb"] = "h100_80gb"
    """Kind of GPU, for its memory; cuda only."""
    host_memory_gib: Annotated[float, Field(gt=0)] | None = None
    """Host memory of a node in GiB, to check that saving a checkpoint fits; null checks nothing. cuda only."""
    mode: Literal["colocated", "disaggregated"] = "colocated"
    """colocated: trainer and engines share slots and take turns; disaggregated: each has its own."""
    trainer: TrainerPlacement = TrainerPlacement()
    rollout: RolloutPlacement = RolloutPlacement()
    trainer_threads: Positive = 1
    """torch threads of one trainer process; cpu only."""
    engine_threads: Positive = 1
    """OMP threads of one engine; cpu only."""


class TrainerConfig(Section):
    batching: Literal["packed", "padded"] = "packed"
    """packed lays samples end to end up to max_tokens_per_gpu; padded takes micro_batch_size samples a time."""
    max_tokens_per_gpu: Positive | None = None
    """Tokens of one packed micro-batch on one GPU; a longer sample goes alone. packed only."""
    micro_batch_size: Positive | None = None
    """Samples of one micro-batch; padded only."""
    recompute: Literal["none", "full"] = "none"
    """Recompute each layer's activations in the backward pass instead of keeping them."""
    sequence_parallel: bool = False
    """Split activations between tensor-parallel layers along the sequence; needs tp > 1."""
    distributed_optimizer: bool = True
    """Shard optimizer state over the data-parallel ranks."""


class WeightSyncConfig(Section):
    transport: Literal["tensor", "distributed"] = "tensor"
    """tensor: handed to the engine on the same slot (by value on cpu, CUDA IPC on cuda), colocated only.
    distributed: a gloo or NCCL group of trainer rank 0 and every engine."""
    bucket_mb: Positive = 512
    """Size of one transfer in MiB."""
    verify: Literal["version", "canary"] = "version"
    """After each sync: read the version back from every engine; canary also compares log-probs on a fixed text."""


class AsyncModeConfig(Section):
    name: Literal["sync"] = Field(default="sync", json_schema_extra=NOT_SEMANTIC)
    """Label used in reports."""
    max_staleness: Annotated[int, Field(ge=0, le=0)] = 0
    """Largest trainer version minus sample version that is trained on; 0 is synchronous."""


class EvalConfig(Section):
    interval: Positive | None = None
    """Evaluate every so many steps, and after the last one; null never."""
    before_train: bool = True
    """Also evaluate before the first step."""
    samples_per_prompt: Positive = 1
    """Samples drawn for each evaluation prompt."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature; 0 is greedy."""
    max_prompts: Positive | None = None
    """Use only the first so many prompts."""


class CheckpointConfig(Section):
    interval: Positive | None = None
    """Save every so many steps; the last step is always saved. Null saves only the last."""
    keep: Positive = 2
    """Newest checkpoints kept."""
    hf_at_end: bool = True
    """Also write the final weights as a Hugging Face checkpoint."""
    digest: bool = False
    """Write sha256 of every rank's weights, optimizer, random and learning-rate state beside each checkpoint, to
    compare two runs bit for bit. Reads all state once, so slow on large models."""


class TrackingConfig(Section):
    enabled: bool = True
    """Log to MLflow."""
    uri: NotEmpty | None = None
    """MLflow tracking URI; null is a sqlite file in `output_dir`."""
    experiment: NotEmpty | None = None
    """MLflow experiment; null is the run's name."""


class TimeoutsConfig(Section):
    """Deadlines of the phases; a phase that misses its own ends the run with the part that was late."""

    start_s: Seconds = 900.0
    """Ray, trainer and engines ready."""
    generate_s: Seconds = 3600.0
    """One step's rollout."""
    train_s: Seconds = 3600.0
    """Log-probs and optimizer steps of one step."""
    sync_s: Seconds = 600.0
    """One weight sync."""
    save_s: Seconds = 1800.0
    """One checkpoint."""


class RunConfig(Section):
    """A whole experiment."""

    name: str = Field(pattern=r"^\w[\w.-]*$", json_schema_extra=NOT_SEMANTIC)
    """Name of the experiment: folder, MLflow experiment."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1234
    """Seed of initial weights, data order, sampling and dropout."""
    num_steps: Positive = 100
    """Steps of the loop: generate, train, publish."""
    stop_after: Positive | None = Field(default=None, json_schema_extra=NOT_SEMANTIC)
    """Save and stop cleanly when this step is done; `rlrun resume` goes on."""
    output_dir: NotEmpty = Field(default="runs", json_schema_extra=NOT_SEMANTIC)
    """Folder of run folders: a run writes <output_dir>/<name>/<time>."""
    model: ModelConfig
    algo: AlgoConfig
    rollout: RolloutConfig
    placement: PlacementConfig = Field(json_schema_extra=NOT_SEMANTIC)
    async_mode: AsyncModeConfig
    data: DataConfig
    reward: RewardConfig
    trainer: TrainerConfig = Field(default=TrainerConfig(), json_schema_extra=NOT_SEMANTIC)
    weight_sync: WeightSyncConfig = Field(default=WeightSyncConfig(), json_schema_extra=NOT_SEMANTIC)
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), json_schema_extra=NOT_SEMANTIC)
    tracking: TrackingConfig = Field(default=TrackingConfig(), json_schema_extra=NOT_SEMANTIC)
    timeouts: TimeoutsConfig = Field(default=TimeoutsConfig(), json_schema_extra=NOT_SEMANTIC)
