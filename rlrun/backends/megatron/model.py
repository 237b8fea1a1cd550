"""ModelSpec and plans -> Megatron's GPT model, DDP wrapper, optimizer and learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch import Tensor

from rlrun.backends.megatron.arguments import passed_on
from rlrun.backends.megatron.delta_net import delta_net_fields
from rlrun.backends.megatron.experts import expert_fields, latent_fields
from rlrun.backends.megatron.layers import decoder_spec
from rlrun.plan.types import ModelSpec, OptimizerPlan, TrainPlan


class PolicyModel(GPTModel):
    """GPTModel whose last pipeline stage returns hidden states [s, b, h] after the final norm, not logits: the output
    projection is applied in chunks (`rlrun.backends.megatron.logprobs`), so that full logits never exist."""

    def _postprocess(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden_states

    def output_weight(self) -> Tensor:
        """[padded_vocab / tp, h] of the output projection; the embedding itself when tied. Last stage only."""
        tied = self.share_embeddings_and_output_weights
        return self.shared_embedding_or_output_weight() if tied else self.output_layer.weight


def padded_vocab_size(vocab_size: int, tp: int) -> int:
    """Rows of the embedding over all tensor-parallel ranks, which hold equal shares."""
    return math.ceil(vocab_size / tp) * tp


def build_model(
    spec: ModelSpec,
    train: TrainPlan,
    dtype: torch.dtype,
    kind: type[GPTModel] = PolicyModel,
    tied: bool | None = None,
) -> Any:
    """This rank's part of the network, on its device, randomly initialised (weights are loaded afterwards). `kind` is
    what its last stage makes of the hidden states; `tied` overrides the spec. Needs the model-parallel groups."""
    config = transformer_config(spec, train, dtype)
    return kind(
        config=config,
        transformer_layer_spec=decoder_spec(config, spec, train.gdn_backend),
        vocab_size=padded_vocab_size(spec.vocab_size, train.tp),
        max_sequence_length=spec.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=spec.tied_embeddings if tied is None else tied,
        position_embedding_type="rope",
        rotary_base=spec.rope_theta,
        rotary_percent=spec.rotary_fraction,
    )


def transformer_config(spec: ModelSpec, train: TrainPlan, dtype: torch.dtype) -> TransformerConfig:
    full = train.recompute == "full"
    uneven = len(set(train.stage_layers)) > 1
    kind = TransformerConfig if spec.mla is None else MLATransformerConfig
    return kind(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_heads,
        num_query_groups=spec.num_kv_heads,
        kv_channels=spec.head_dim,
        ffn_hidden_size=spec.ffn_hidden_size,
        normalization="RMSNorm",
        layernorm_epsilon=spec.rms_norm_eps,
        # MiniMax's norm over all heads is a module of its own.
        qk_layernorm=spec.mla is not None or spec.qk_norm == "head",
        layernorm_zero_centered_gamma=spec.zero_centered_norms,
        attention_output_gate=spec.output_gate,
        add_qkv_bias=spec.qkv_bias,
        rotary_interleaved=spec.rotary_interleaved,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=train.tp,
        pipeline_model_parallel_size=train.pp,
        num_layers_in_first_pipeline_stage=train.stage_layers[0] if uneven else None,
        num_layers_in_last_pipeline_stage=train.stage_layers[-1] if uneven else None,
        context_parallel_size=train.cp,
        sequence_parallel=train.sequence_parallel and train.tp > 1,
        # Micro-batches differ in length, so the stages tell each other the shape.
        variable_seq_lengths=train.pp > 1,
        recompute_granularity="full" if full else None,
        recompute_method="uniform" if full else None,
        recompute_num_layers=1 if full else None,
        finalize_model_grads_func=_finalize_without_scaling,
        # These need TransformerEngine, Apex or a compiler.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        **expert_fields(spec, train),
        **latent_fields(spec),
        **(delta_net_fields(spec.linear_attention) if spec.linear_attention is not None else {}),
        **passed_on(train, "transformer"),
    )


def _finalize_without_scaling(model: list[torch.nn.Module], num_tokens: Tensor | None = None, **kwargs: Any) -> None:
    """Megatron's gradient reduction, without its division by the number of tokens: the loss weights hold that."""
    finalize_model_grads(model, None, **kwargs)


def wrap_ddp(model: GPTModel, train: TrainPlan) -> DistributedDataParallel:
    """Gradients are summed in `train.grad_dtype`, over micro-batches and over the data-parallel ranks."""
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=train.grad_dtype == "float32",
        use_distributed_optimizer=train.distributed_optimizer,
        **passed_on(train, "ddp"),
    )
    return DistributedDataParallel(model.config, config, model)


def build_optimizer(
    model: DistributedDataParallel, train: TrainPlan, plan: OptimizerPlan, gather_on_host: bool = False
) -> MegatronOptimizer:
    """AdamW with float32 state; weight decay on matrices only. `clip_grad` 0 clips at infinity, so that the norm is
    still measured. `gather_on_host`: a distributed optimizer joins its shards for a checkpoint through gloo. Reads the
    weights, so load them first."""
    config = OptimizerConfig(
        optimizer="adam",
        lr=plan.lr,
        min_lr=plan.min_lr,
        weight_decay=plan.weight_decay,
        adam_beta1=plan.beta1,
        adam_beta2=plan.beta2,
        adam_eps=plan.eps,
        clip_grad=plan.clip_grad or math.inf,
        bf16=model.config.bf16,
        params_dtype=model.config.params_dtype,
        use_distributed_optimizer=train.distributed_optimizer,
        **passed_on(train, "optimizer"),
    )
    return get_megatron_optimizer(config, [model], use_gloo_process_groups=gather_on_host)


def build_scheduler(optimizer: MegatronOptimizer, plan: OptimizerPlan) -> OptimizerParamScheduler:
    """Learning rate of optimizer step k = 0, 1, ..., with W warm-up steps and T total steps:

    k < W: lr * (k + 1) / (W + 1), a ramp whose first step already learns; then, with r = (k - W) / (T - W),
    constant: lr; linear: min_lr + (lr - min_lr) * (1 - r); cosine: min_lr + (lr - min_lr) * (1 + cos(pi r)) / 2.
    """
    return OptimizerParamScheduler(
        optimizer,
        init_lr=plan.lr / (plan.warmup_steps + 1),
        max_lr=plan.lr,
        min_lr=plan.min_lr,
        lr_warmup_steps=plan.warmup_steps,
        # Megatron asserts a decay even for a schedule that has none.
        lr_decay_steps=max(plan.total_steps, plan.warmup_steps + 1),
        lr_decay_style=plan.schedule,
        start_wd=plan.weight_decay,
        end_wd=plan.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
        # The plan decides the schedule; a checkpoint only says how far it has gone.
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )
