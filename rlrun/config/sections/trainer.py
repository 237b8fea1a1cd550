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
    recompute: Literal["none", "full"] = "none"
    """Recompute each layer's activations in the backward pass instead of keeping them."""
    sequence_parallel: bool = False
    """Split activations between tensor-parallel layers along the sequence; needs tp > 1."""
    distributed_optimizer: bool = True
    """Shard optimizer state over the data-parallel ranks."""
    megatron: MegatronConfig = Field(default=MegatronConfig(), json_schema_extra=SEMANTIC)
