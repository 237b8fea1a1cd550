"""Generation: sampling, requests, engine settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlrun.config.sections.base import NOT_SEMANTIC, NonNegative, NotEmpty, OpenSection, Positive, Seconds, Section


class SglangConfig(OpenSection):
    """Settings of each SGLang server: the keys below, and any other argument of the pinned version by its name, such as
    schedule_policy. Ports, model path and parallel sizes come from the plan."""

    engine: ClassVar[str] = "sglang"

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


class ServedModel(Section):
    """A frozen model served beside the policy, such as a reward or reference model. It never gets new weights."""

    path: NotEmpty
    """Folder or Hub id of the model."""
    gpus_per_engine: Positive | None = Field(default=None, json_schema_extra=NOT_SEMANTIC)
    """GPUs of one of its engines; null is placement.rollout.gpus_per_engine."""
    context_length: Positive | None = Field(default=None, json_schema_extra=NOT_SEMANTIC)
    """Most tokens of a request and its answer together; null is what its config.json says."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of its weights and activations. auto is float32 on cpu and bfloat16 on cuda."""


class RolloutConfig(Section):
    max_prompt_tokens: Positive = 1024
    """Longest prompt after the chat template; longer ones are an error, named by row."""
    max_response_tokens: Positive = 1024
    """Most tokens generated for one sample. sft: longest response, with its end; longer ones are an error, named by
    row."""
    expected_response_tokens: Positive | None = Field(default=None, json_schema_extra=NOT_SEMANTIC)
    """Mean tokens of a response, for the plan's estimate of time and its check of deadlines; null takes half of
    max_response_tokens. cuda only."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature; the trainer divides its logits by the same value."""
    overlong: Literal["none", "mask", "penalize", "drop"] = "none"
    """Samples cut at max_response_tokens. none: as any other. mask: they keep their reward and teach nothing. penalize:
    the reward falls linearly over the last overlong_buffer_tokens before the limit (DAPO). drop: the rollout is taken
    out of its group before rewards are compared, and a group with fewer than two left is dropped."""
    overlong_buffer_tokens: Positive | None = None
    """Tokens before max_response_tokens over which the penalty grows. penalize only."""
    overlong_penalty: Annotated[float, Field(gt=0)] = 1.0
    """What a sample of max_response_tokens loses. penalize only."""
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, json_schema_extra=NOT_SEMANTIC)
    """Has to be 1: samples are drawn from the whole distribution, whose log-probs are trained on. See eval.top_p."""
    top_k: Annotated[int, Field(ge=-1)] = Field(default=-1, json_schema_extra=NOT_SEMANTIC)
    """Has to be -1, all tokens, for the same reason. See eval.top_k."""
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(default=0.0, json_schema_extra=NOT_SEMANTIC)
    """Has to be 0, for the same reason."""
    stop: list[str] = Field(default=[])
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
    offload: bool = Field(default=False, json_schema_extra=NOT_SEMANTIC)
    """Release the engines' weights and KV cache while the trainer works (SGLang's memory saver); colocated only.
    Weights come back with the next push, the KV cache after it."""
    port: Annotated[int, Field(ge=1024, le=65535)] | None = Field(default=None, json_schema_extra=NOT_SEMANTIC)
    """First port of the engines and the router, which take consecutive ones; null picks free ports."""
    sglang: SglangConfig = Field(default=SglangConfig(), json_schema_extra=NOT_SEMANTIC)
    models: dict[str, ServedModel] = Field(default={})
    """Frozen models by name; a group of placement.rollout.server_groups, or an external server, serves each."""
