"""Megatron's arguments that a run may not set: those that another key decides, and those that would break it or do
nothing in rlrun's trainer.

Every other argument of the pinned version reaches the config objects that have it. A name that several objects have
means the same in all of them, so all get the value: see `of` in the recorded table.
"""

from __future__ import annotations

from typing import Any

SHAPE = "model.architecture"
FAMILY = "model.family"

OWNED: dict[str, str] = {
    # Layout
    "tensor_model_parallel_size": "placement.trainer.tp",
    "pipeline_model_parallel_size": "placement.trainer.pp",
    "variable_seq_lengths": "placement.trainer.pp",
    "context_parallel_size": "placement.trainer.cp",
    "expert_model_parallel_size": "placement.trainer.ep",
    "expert_tensor_parallel_size": "placement.trainer.etp",
    "num_layers_in_first_pipeline_stage": "placement.trainer.first_stage_layers",
    "num_layers_in_last_pipeline_stage": "placement.trainer.last_stage_layers",
    "sequence_parallel": "trainer.sequence_parallel",
    "use_distributed_optimizer": "trainer.distributed_optimizer",
    "recompute_granularity": "trainer.recompute",
    "recompute_method": "trainer.recompute",
    "recompute_num_layers": "trainer.recompute",
    "recompute_modules": "trainer.recompute",
    "moe_layer_recompute": "trainer.recompute",
    "num_microbatches_with_partial_activation_checkpoints": "trainer.recompute",
    # Types
    "fp16": "model.dtype",
    "bf16": "model.dtype",
    "params_dtype": "model.dtype",
    "pipeline_dtype": "model.dtype",
    "enable_autocast": "model.dtype",
    "autocast_dtype": "model.dtype",
    "grad_reduce_in_fp32": "trainer.grad_dtype",
    "main_grads_dtype": "trainer.grad_dtype",
    "exp_avg_dtype": "trainer.optimizer_dtype",
    "exp_avg_sq_dtype": "trainer.optimizer_dtype",
    "use_precision_aware_optimizer": "trainer.optimizer_dtype",
    "optimizer_cpu_offload": "trainer.optimizer_offload",
    "optimizer_offload_fraction": "trainer.optimizer_offload",
    "use_torch_optimizer_for_cpu_offload": "trainer.optimizer_offload",
    "overlap_cpu_optimizer_d2h_h2d": "trainer.optimizer_offload",
    # Optimizer
    "lr": "algo.lr",
    "min_lr": "algo.min_lr",
    "decoupled_lr": "algo.lr",
    "decoupled_min_lr": "algo.min_lr",
    "weight_decay": "algo.weight_decay",
    "adam_beta1": "algo.adam_beta1",
    "adam_beta2": "algo.adam_beta2",
    "adam_eps": "algo.adam_eps",
    "clip_grad": "algo.clip_grad",
    # Sizes
    "num_layers": f"{SHAPE}.num_hidden_layers",
    "hidden_size": f"{SHAPE}.hidden_size",
    "num_attention_heads": f"{SHAPE}.num_attention_heads",
    "num_query_groups": f"{SHAPE}.num_key_value_heads",
    "kv_channels": f"{SHAPE}.head_dim",
    "ffn_hidden_size": f"{SHAPE}.intermediate_size",
    "layernorm_epsilon": f"{SHAPE}.rms_norm_eps",
    "qk_layernorm": f"{SHAPE}.use_qk_norm",
    "add_qkv_bias": f"{SHAPE}.attention_bias",
    "rotary_base": f"{SHAPE}.rope_theta",
    "rotary_percent": f"{SHAPE}.partial_rotary_factor",
    "original_max_position_embeddings": f"{SHAPE}.max_position_embeddings",
    "num_moe_experts": f"{SHAPE}.num_experts",
    "moe_router_topk": f"{SHAPE}.num_experts_per_tok",
    "moe_ffn_hidden_size": f"{SHAPE}.moe_intermediate_size",
    "moe_shared_expert_intermediate_size": f"{SHAPE}.shared_expert_intermediate_size",
    "moe_layer_freq": f"{SHAPE}.first_k_dense_replace",
    "q_lora_rank": f"{SHAPE}.q_lora_rank",
    "kv_lora_rank": f"{SHAPE}.kv_lora_rank",
    "qk_head_dim": f"{SHAPE}.qk_nope_head_dim",
    "qk_pos_emb_head_dim": f"{SHAPE}.qk_rope_head_dim",
    "v_head_dim": f"{SHAPE}.v_head_dim",
    "dsa_indexer_n_heads": f"{SHAPE}.index_n_heads",
    "dsa_indexer_head_dim": f"{SHAPE}.index_head_dim",
    "dsa_indexer_topk": f"{SHAPE}.index_topk",
    "linear_attention_freq": f"{SHAPE}.full_attention_interval",
    "linear_conv_kernel_dim": f"{SHAPE}.linear_conv_kernel_dim",
    "linear_key_head_dim": f"{SHAPE}.linear_key_head_dim",
    "linear_value_head_dim": f"{SHAPE}.linear_value_head_dim",
    "linear_num_key_heads": f"{SHAPE}.linear_num_key_heads",
    "linear_num_value_heads": f"{SHAPE}.linear_num_value_heads",
    # What a family is
    "normalization": FAMILY,
    "activation_func": FAMILY,
    "activation_func_clamp_value": FAMILY,
    "gated_linear_unit": FAMILY,
    "glu_linear_offset": FAMILY,
    "add_bias_linear": FAMILY,
    "layernorm_zero_centered_gamma": FAMILY,
    "apply_residual_connection_post_layernorm": FAMILY,
    "attention_output_gate": FAMILY,
    "experimental_attention_variant": FAMILY,
    "multi_latent_attention": FAMILY,
    "rope_type": FAMILY,  # "rope" in every family; Megatron's own default, yarn, moves the logits without an error
    "rotary_interleaved": FAMILY,
    "rotary_scaling_factor": FAMILY,
    "mrope_section": FAMILY,
    "no_rope_freq": FAMILY,
    "beta_fast": FAMILY,
    "beta_slow": FAMILY,
    "mscale": FAMILY,
    "mscale_all_dim": FAMILY,
    "qk_l2_norm": FAMILY,
    "softmax_scale": FAMILY,
    "softmax_type": FAMILY,
    "window_size": FAMILY,
    "window_attn_skip_freq": FAMILY,
    "moe_latent_size": FAMILY,
    "moe_router_score_function": FAMILY,
    "moe_router_pre_softmax": FAMILY,
    "moe_router_enable_expert_bias": FAMILY,
    "moe_router_topk_scaling_factor": FAMILY,
    "moe_router_num_groups": FAMILY,
    "moe_router_group_topk": FAMILY,
    "moe_router_topk_limited_devices": FAMILY,
    "moe_shared_expert_gate": FAMILY,
    "moe_apply_probs_on_input": FAMILY,
}
"""Name -> the key that decides it."""

ALWAYS: dict[str, Any] = {
    # The embedding's gradient is then accumulated in a fixed order, which resuming bit for bit needs.
    "deterministic_mode": True,
    # Megatron's default is refused beside variable lengths.
    "moe_token_dispatcher_type": "alltoall",
    # With Megatron's own rate the router's selection bias would drift at every step, behind the loss.
    "moe_router_bias_update_rate": 0.0,
    # Nothing beside the policy's loss moves a router, unless a run asks for it.
    "moe_router_load_balancing_type": "none",
    "moe_router_dtype": "fp32",
    "transformer_impl": "local",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    # The loss and the gradients are plain sums over micro-batches and ranks: this stops Megatron from dividing the loss
    # by the number of micro-batches and DDP from averaging over data-parallel ranks.
    "calculate_per_token_loss": True,
}
"""What rlrun gives to Megatron in place of its defaults."""

_TE = "it needs TransformerEngine, and this version builds Megatron's layers without it"
_ATTENTION = "attention runs through rlrun's own core, which does not read it"
_SUMS = "the loss and its gradient are plain sums over samples, micro-batches and ranks; this would scale them"
_START = "weights come from a checkpoint, not from Megatron's initialisation"
_INFERENCE = "SGLang generates; Megatron only trains"
_STAGES = "the plan gives every pipeline stage the same number of layers, in order"
_SHAPES = "micro-batches differ in length, and a CUDA graph has one"
_FSDP = "it belongs to Megatron-FSDP; trainer.distributed_optimizer shards the optimizer state"
_ADAM = "the optimizer is AdamW"
_FP16 = "losses are scaled in float16 only, and model.dtype is float32 or bfloat16"
_MEMORY = "the plan counts the optimizer state among the GPU's memory"
_DEEPEP = "it needs DeepEP, which is not installed beside the pinned engines"
_FAMILIES = "no family of rlrun has such layers"
_HEAD = "rlrun applies the output projection itself, in chunks"
_HOOKS = "weights are read between optimizer steps, and have to be whole then"
_TIMERS = "rlrun times a step itself and gives Megatron no timers"

REFUSED: tuple[tuple[str, str], ...] = (
    ("hidden_dropout", "a policy with dropout has other log-probabilities at every pass: its ratio means nothing"),
    ("attention_dropout", "a policy with dropout has other log-probabilities at every pass: its ratio means nothing"),
    ("moe_input_jitter_eps", "noise in the router gives other log-probabilities at every pass"),
    ("moe_router_force_load_balancing", "it sends tokens to experts at random, to measure speed"),
    (
        "moe_router_bias_update_rate",
        "the selection bias of the router is the checkpoint's: another rate than 0 moves it"
        " at every step, behind the loss",
    ),
    (
        "moe_token_dispatcher_type",
        "allgather does not take micro-batches of different lengths, and flex needs DeepEP, which is not installed",
    ),
    ("moe_enable_deepep", _DEEPEP),
    ("moe_flex_dispatcher_backend", _DEEPEP),
    ("moe_*_num_sms", _DEEPEP),
    ("moe_token_dropping", "megatron-core has the name and not the feature; moe_expert_capacity_factor drops tokens"),
    ("moe_*grouped_gemm", "it needs TransformerEngine or grouped_gemm, and this version builds on neither"),
    ("moe_enable_routing_replay", "rollouts do not carry the experts that were chosen"),
    ("moe_extended_tp", "experts are split over placement.trainer.ep alone"),
    ("*hybrid_context_parallel", "context-parallel ranks take equal parts of a sequence"),
    ("hierarchical_context_parallel_sizes", "context-parallel ranks take equal parts of a sequence"),
    ("max_seqlen_per_dp_cp_rank", "context-parallel ranks take equal parts of a sequence"),
    ("cp_comm_type", _ATTENTION),
    ("virtual_pipeline_model_parallel_size", _STAGES),
    ("microbatch_group_size_per_vp_stage", _STAGES),
    ("overlap_p2p_comm*", _STAGES),
    ("pipeline_model_parallel_layout", _STAGES),
    ("account_for_*_in_pipeline_split", _STAGES),
    ("use_ring_exchange_p2p", "it needs a build of torch with ring exchange"),
    ("calculate_per_token_loss", _SUMS),
    ("average_in_collective", _SUMS),
    ("gradient_reduce_div_fusion", _SUMS),
    ("barrier_with_L1_time", _TIMERS),
    ("log_num_zeros_in_grad", "rlrun does not log it"),
    ("moe_per_layer_logging", "rlrun does not log it"),
    ("config_logger_dir", "the run folder holds the plan, and what follows from it"),
    ("attention_backend", _ATTENTION),
    ("masked_softmax_fusion", _ATTENTION),
    ("attention_softmax_in_fp32", _ATTENTION),
    ("apply_query_key_layer_scaling", _ATTENTION),
    ("qk_clip*", _ATTENTION),
    ("log_max_attention_logit", _ATTENTION),
    ("dsa_indexer_*loss*", "the indexer of a sparse attention stays as it is in the checkpoint"),
    ("cross_entropy_*", _HEAD),
    ("defer_embedding_wgrad_compute", _HEAD),
    ("wgrad_deferral_limit", _HEAD),
    ("mtp_*", "layers that predict several tokens are not trained"),
    ("perform_initialization", _START),
    ("use_cpu_initialization", _START),
    ("init_model_with_meta_device", _START),
    ("*init_method_std", _START),
    ("*inference*", _INFERENCE),
    ("flash_decode", _INFERENCE),
    ("batch_invariant_mode", _INFERENCE),
    ("cache_mla_latents", _INFERENCE),
    ("mlp_chunks_for_prefill", _INFERENCE),
    ("symmetric_ar_type", _INFERENCE),
    ("*cuda_graph*", _SHAPES),
    ("*mamba*", _FAMILIES),
    ("is_hybrid_model", _FAMILIES),
    ("heter*", _FAMILIES),
    ("use_fused_weighted_squared_relu", _FAMILIES),
    ("use_megatron_fsdp", _FSDP),
    ("use_custom_fsdp", _FSDP),
    ("*_sharding_strategy", _FSDP),
    ("*fsdp*", _FSDP),
    ("suggested_communication_unit_size", _FSDP),
    ("preserve_fp32_weights", _FSDP),
    ("nccl_ub", _FSDP),
    ("disable_symmetric_registration", _FSDP),
    ("num_distributed_optimizer_instances", "the optimizer state is sharded over all data-parallel ranks"),
    ("optimizer", _ADAM),
    ("decoupled_weight_decay", _ADAM),
    ("sgd_momentum", _ADAM),
    ("muon_*", _ADAM),
    ("*loss_scale*", _FP16),
    ("hysteresis", _FP16),
    ("overlap_grad_reduce", "gradients are reduced once, after the last micro-batch"),
    ("pin_cpu_*", _MEMORY),
    ("overlap_param_gather*", _HOOKS),
    ("align_param_gather", _HOOKS),
    ("reuse_grad_buf_for_mxfp8_param_ag", _TE),
    ("store_param_remainders", _TE),
    ("main_*_dtype", _TE),
    ("transformer_impl", _TE),
    ("*fp8*", _TE),
    ("fp4*", _TE),
    ("tp_only_amax_red", _TE),
    ("*_in_bf16", _TE),
    ("first_last_layers_bf16", _TE),
    ("moe_router_padding_for_quantization", _TE),
    ("*kitchen*", _TE),
    ("use_te_*", _TE),
    ("tp_comm_*", _TE),
    ("async_tensor_model_parallel_allreduce", _TE),
    ("cpu_offloading*", _TE),
    ("fine_grained_activation_offloading", _TE),
    ("*offload*_modules", _TE),
    ("offload_modules", _TE),
    ("min_offloaded_tensor_size", _TE),
    ("delay_wgrad_compute", _TE),
    ("*early_attn_memory_release", _TE),
    ("overlap_moe_expert_parallel_comm", _TE),
    ("disable_parameter_transpose_cache", _TE),
    ("apply_rope_fusion", _TE),
    ("fused_single_qkv_rope", _TE),
    ("moe_permute_fusion", _TE),
    ("moe_router_fusion", _TE),
    ("gradient_accumulation_fusion", "it needs Apex or TransformerEngine, and this version builds on neither"),
    ("persist_layer_norm", "norms are rlrun's own RMSNorm"),
    ("memory_efficient_layer_norm", "norms are rlrun's own RMSNorm"),
    ("test_mode", "it is a switch of Megatron's own tests"),
)
"""Name or pattern -> why no other value than the one in use is possible. The first that matches counts."""

LAUNCH_SCRIPTS: dict[str, str] = {
    "micro_batch_size": "trainer.micro_batch_size",
    "max_tokens_per_gpu": "trainer.max_tokens_per_gpu",
    "use_dynamic_batch_size": "trainer.batching",
    "global_batch_size": "algo.groups_per_step",
    "seq_length": "rollout.max_response_tokens",
    "train_iters": "num_steps",
    "seed": "seed",
    "lr_decay_style": "algo.lr_schedule",
    "lr_warmup_iters": "algo.lr_warmup_steps",
    "recompute_activations": "trainer.recompute",
    "untie_embeddings_and_output_weights": f"{SHAPE}.tie_word_embeddings",
    "max_position_embeddings": f"{SHAPE}.max_position_embeddings",
    "vocab_size": f"{SHAPE}.vocab_size",
    "num_experts": f"{SHAPE}.num_experts",
    "swiglu": FAMILY,
    "group_query_attention": f"{SHAPE}.num_key_value_heads",
    "norm_epsilon": f"{SHAPE}.rms_norm_eps",
    "position_embedding_type": FAMILY,
    "use_rotary_position_embeddings": FAMILY,
    "disable_bias_linear": FAMILY,
    "save": "output_dir",
    "load": "model.path",
    "save_interval": "checkpoint.interval",
    "eval_interval": "eval.interval",
    "distributed_timeout_minutes": "timeouts.train_s",
}
"""Flags of Megatron's launch scripts that are no arguments of megatron-core -> the key that decides the same here."""

NEEDLESS: dict[str, str] = {
    "use_flash_attn": "attention uses torch's flash kernels on cuda by itself",
    "use_mcore_models": "every model is one of megatron-core",
    "no_rope_fusion": "rotary embeddings are not fused",
    "no_gradient_accumulation_fusion": "it is off",
    "accumulate_allreduce_grads_in_fp32": "trainer.grad_dtype is float32 unless you change it",
    "tokenizer_type": "the tokenizer is the checkpoint's",
    "no_load_optim": "optimizer state is read from the run's own checkpoints only",
}
"""Flags of those scripts without a counterpart -> why nothing is lost by leaving them out."""

CUDA_ONLY: tuple[str, ...] = (
    "pipeline_model_parallel_comm_backend",
    "disable_bf16_reduced_precision_matmul",
    "pad_buckets_for_high_nccl_busbw",
)
"""What does nothing, or cannot work, without a GPU."""

EXPERTS: tuple[str, ...] = ("moe_*",)
"""What only a model with experts has."""

PIPELINE: tuple[str, ...] = (
    "batch_p2p_*",
    "deallocate_pipeline_outputs",
    "pipeline_model_parallel_comm_backend",
)
"""What only a pipeline of several stages has."""
