"""The Megatron side: batches, recomputation, optimizer state."""

from __future__ import annotations

from typing import Literal

from rlrun.config.sections.base import Positive, Section


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
