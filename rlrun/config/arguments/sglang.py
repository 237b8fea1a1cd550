"""SGLang's arguments that a run may not set: those that another key decides, and those that would break it.

Every other argument of the pinned version is passed on to each server as it is.
"""

from __future__ import annotations

from typing import Any

GPUS = "placement.rollout.gpus_per_engine"
GROUPS = "placement.rollout.server_groups"

OWNED: dict[str, str] = {
    "model_path": "model.path",
    "tokenizer_path": "model.path",
    "revision": "model.path",
    "json_model_override_args": "model.architecture",
    "dtype": "model.dtype",
    "context_length": "rollout.max_response_tokens",
    "device": "placement.device",
    "random_seed": "seed",
    "host": "rollout.port",
    "port": "rollout.port",
    "dist_init_addr": "rollout.port",
    "nccl_port": "rollout.port",
    "dist_timeout": "timeouts.start_s",
    "tp_size": GPUS,
    "pp_size": "placement.rollout.pp",
    "ep_size": "placement.rollout.ep",
    "dp_size": "placement.rollout.dp_attention",
    "enable_dp_attention": "placement.rollout.dp_attention",
    "attn_cp_size": GPUS,
    "moe_dp_size": GPUS,
    "dcp_size": GPUS,
    "nnodes": GPUS,
    "node_rank": GPUS,
    "base_gpu_id": "placement.rollout.gpus",
    "gpu_id_step": "placement.rollout.gpus",
    "disable_cuda_graph": "rollout.sglang.cuda_graph",
    "enable_memory_saver": "rollout.offload",
    "enable_weights_cpu_backup": "rollout.offload",
    "enable_draft_weights_cpu_backup": "rollout.offload",
    "disaggregation_mode": GROUPS,
    "disaggregation_bootstrap_port": "rollout.port",
    "encoder_only": GROUPS,
    "language_only": GROUPS,
    "weight_version": "weight_sync.verify",
    "load_balance_method": "rollout.router_policy",
}
"""Name -> the key that decides it."""

ALWAYS: dict[str, Any] = {
    "skip_server_warmup": True,
    "sampling_backend": "pytorch",
    "grammar_backend": "none",  # no constrained decoding
    "log_level_http": "warning",  # else one line a request
}
"""What rlrun gives to every server, in place of SGLang's defaults."""

ON_CPU: dict[str, Any] = {"disable_overlap_schedule": True, "sleep_on_idle": True}
"""And on cpu: the overlap scheduler gains nothing without a GPU; without the other the scheduler polls a whole core."""

FAMILY_ON_CPU: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {"json_model_override_args": '{"architectures": ["Glm4MoeLiteForCausalLM"]}'},
}
"""And for a family on cpu. GLM-5's own class selects keys with kernels that exist for GPUs only. GLM-4.7-Flash's class
is the same model without the selection, which is what the plan allows: no context exceeds index_topk."""

_ENDPOINT = "rlrun sends token ids to /generate and renders chat templates itself: it would do nothing"
_LORA = "rlrun trains whole weights and publishes them whole"
_LOADING = "a server starts from the run's checkpoint on disk, and later weights come from the trainer"
_QUANTIZED = "the trainer publishes weights as they are, and a quantized server has no such tensors"
_SERVER = "rlrun starts, watches and addresses every server itself"
_WHOLE = "every engine of this rollout is one whole server"
_EMBEDDING = "an embedding server generates nothing"
_OWN_MODELS = "weights are published under the names of SGLang's own models"
_DP = "an engine is one tensor-parallel group: it has no data- or context-parallel ranks of attention"

REFUSED: tuple[tuple[str, str], ...] = (
    ("served_model_name", _SERVER),
    ("skip_server_warmup", _SERVER),
    ("warmups", "rlrun starts servers without warm-up requests"),
    ("grpc_mode", _SERVER),
    ("grpc_http_sidecar_port", _SERVER),
    ("enable_http2", _SERVER),
    ("fastapi_root_path", _SERVER),
    ("use_ray", _SERVER),
    ("ssl_*", "rlrun speaks plain HTTP with the servers that it starts"),
    ("enable_ssl_refresh", "rlrun speaks plain HTTP with the servers that it starts"),
    ("*api_key", "rlrun sends no key with its requests, which the server would then refuse"),
    ("load_format", _LOADING),
    ("speculative_draft_load_format", _LOADING),
    ("model_loader_extra_config", _LOADING),
    ("custom_weight_loader", _LOADING),
    ("remote_instance_weight_loader_*", _LOADING),
    ("engine_info_bootstrap_port", _LOADING),
    ("modelexpress_config", _LOADING),
    ("download_dir", _LOADING),
    ("model_checksum", _LOADING),
    ("decrypted_*", _LOADING),
    ("checkpoint_engine_wait_weights_before_ready", "nobody would send those weights: the server would never be ready"),
    ("delete_ckpt_after_loading", "it would delete the checkpoint that the trainer and the other engines read"),
    ("model_impl", _OWN_MODELS),
    ("model_config_parser", _OWN_MODELS),
    ("skip_tokenizer_init", "rollout.stop and the end of a sample need the server's tokenizer"),
    ("is_embedding", _EMBEDDING),
    ("prefill_only_disable_kv_cache", "a server without a KV cache generates nothing"),
    ("allow_auto_truncate", "a prompt cut by the server is not the prompt that is trained on"),
    ("speculative_accept_threshold_*", "samples would come from another distribution than the policy's"),
    ("preferred_sampling_params", "it would change the distribution that samples are drawn from behind rollout.*"),
    ("quantization*", _QUANTIZED),
    ("modelopt_*", _QUANTIZED),
    ("quantize_and_serve", _QUANTIZED),
    ("rl_quant_profile", _QUANTIZED),
    ("torchao_config", _QUANTIZED),
    ("*lora*", _LORA),
    ("dllm_*", "a diffusion model has no log-probability for each token"),
    ("disaggregation_*", _WHOLE),
    ("num_reserved_decode_tokens", _WHOLE),
    ("optimistic_prefill_retries", _WHOLE),
    ("encoder_*", _WHOLE),
    ("enable_adaptive_dispatch_to_encoder", _WHOLE),
    ("*decoupled_spec_*", _WHOLE),
    ("enable_dp_*", _DP),
    ("enable_*prefill_cp", _DP),
    ("*prefill_context_parallel", _DP),
    ("*prefill_cp_mode", _DP),
    ("cp_strategy", _DP),
    ("speculative_skip_dp_mlp_sync", _DP),
    ("chat_template", _ENDPOINT),
    ("hf_chat_template_name", _ENDPOINT),
    ("completion_template", _ENDPOINT),
    ("*_parser", _ENDPOINT),
    ("tool_server", _ENDPOINT),
    ("sampling_defaults", _ENDPOINT),
    ("asr_*", _ENDPOINT),
    ("*_strict_thinking", _ENDPOINT),
    ("strip_thinking_cache", _ENDPOINT),
    ("stream_response_default_include_usage", _ENDPOINT),
    ("incremental_streaming_output", _ENDPOINT),
    ("*streaming_session", _ENDPOINT),
)
"""Name or pattern -> why no other value than the one in use is possible. The first that matches counts."""

FOR_THE_POLICY: tuple[str, ...] = (_QUANTIZED, _ENDPOINT, _EMBEDDING, _OWN_MODELS)
"""Reasons that do not hold for a frozen model, which gets no weights and answers what a user's function asks."""

NEEDLESS: dict[str, str] = {
    "collect_tokens_histogram": "SGLang collects them whenever enable_metrics is true",
    "prefill_round_robin_balance": "SGLang does so by itself",
    "enable_ep_moe": "set placement.rollout.ep",
    "enable_deepep_moe": "set moe_a2a_backend to deepep",
}
"""Arguments that older versions had -> what to do about them."""

CUDA_ONLY: tuple[str, ...] = (
    "*cuda_graph*",
    "*flashinfer*",
    "*nccl*",
    "*symm_mem*",
    "*_custom_all_reduce",
    "*mscclpp*",
    "*aiter*",
    "triton_*",
    "deepep_*",
    "*deepep*",
    "fp8_gemm_*",
    "fp4_gemm_*",
    "bf16_gemm_*",
    "enable_p2p_check",
    "enable_two_batch_overlap",
    "enable_single_batch_overlap",
    "enable_quant_communications",
    "enable_tf32_matmul",
    "enable_layerwise_nvtx_marker",
    "enable_pdmux",
    "sm_group_num",
    "pdmux_config_path",
    "cpu_offload_gb",
    "offload_*",
    "moe_runner_backend",
    "moe_a2a_backend",
    "hicache_*",
    "enable_hierarchical_cache",
    "prefill_attention_backend",
    "decode_attention_backend",
    "dsa_*_backend",
    "mooncake_ib_device",
    "speculative_*",
    "kt_*",
)
"""What does nothing, or cannot work, without a GPU."""

EXPERTS: tuple[str, ...] = (
    "moe_*",
    "ep_*",
    "*eplb*",
    "*deepep*",
    "*expert*",
    "*elastic_ep*",
    "enable_fused_moe_sum_all_reduce",
    "flashinfer_mxfp4_moe_precision",
    "kt_*",
)
"""What only a model with experts has."""

LINEAR_ATTENTION: tuple[str, ...] = ("*mamba*", "linear_*", "enable_linear_replayssm")
"""What only a model with gated delta nets has."""

INDEXER: tuple[str, ...] = ("dsa_*", "enable_return_indexer_topk", "*hisparse*")
"""What only a model with sparse attention has."""
