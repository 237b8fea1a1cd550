"""The Megatron side: batches, recomputation, optimizer state."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlrun.config.sections.base import SEMANTIC, OpenSection, Positive, Section


class MegatronConfig(OpenSection):
    """Arguments of the pinned megatron-core by their names, such as moe_aux_loss_coeff: fields of TransformerConfig,
    MLATransformerConfig, OptimizerConfig and DistributedDataParallelConfig. What other keys decide is refused."""

    engine: ClassVar[str] = "megatron"


class TrainerConfig(Section):
    batching: Literal["packed", "padded"] = "packed"
    """packed lays samples end to end up to max_tokens_per_gpu; padded takes micro_batch_size samples a time."""
    max_tokens_per_gpu: Positive | None = None
    """Tokens of one packed micro-batch on one GPU; a longer sample goes alone. packed only."""
    micro_batch_size: Positive | None = None
    """Samples of one micro-batch; padded only."""
    balance_by: Literal["tokens", "flops"] = "tokens"
    """What data-parallel ranks get equally much of: tokens, or estimated operations, of which attention makes long
    samples cost more than in proportion. The cap of a micro-batch stays in tokens."""
    recompute: Literal["none", "full"] = "none"
    """Recompute each layer's activations in the backward pass instead of keeping them."""
    sequence_parallel: bool = False
    """Split activations between tensor-parallel layers along the sequence; needs tp > 1."""
    distributed_optimizer: bool = True
    """Shard optimizer state over the data-parallel ranks."""
    grad_dtype: Literal["float32", "bfloat16"] = Field(default="float32", json_schema_extra=SEMANTIC)
    """Type in which gradients are kept, summed over micro-batches and reduced; bfloat16 takes half the memory and
    rounds every sum. For bfloat16 weights."""
    optimizer_dtype: Literal["float32", "bfloat16"] = Field(default="float32", json_schema_extra=SEMANTIC)
    """Type of AdamW's two moments; main weights stay float32. bfloat16 needs distributed_optimizer; cuda only."""
    optimizer_offload: bool = False
    """Keep main weights and moments in host memory and take the optimizer's step there: 6 instead of 18 bytes a
    parameter on the GPUs, 12 on the hosts, and a slower step. Needs distributed_optimizer; cuda only."""
    offload: bool = False
    """Move the trainer's weights, gradients and optimizer to host memory while the engines generate; colocated only. On
    cpu they move to other host memory, which saves nothing and tries everything."""
    megatron: MegatronConfig = Field(default=MegatronConfig(), json_schema_extra=SEMANTIC)
