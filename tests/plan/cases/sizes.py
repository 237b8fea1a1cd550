"""Sizes that fit on paper and not together."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from case import BIG, QUICK, Case

MOE = "+experiment=qwen3_30b_a3b_grpo"

CASES = [
    Case("token-cap-too-small", [BIG, "trainer.max_tokens_per_gpu=100"], ["trainer.max_tokens_per_gpu=2560"]),
    Case(
        "token-cap-too-small",
        [BIG, "placement.trainer.cp=4", "trainer.max_tokens_per_gpu=100", "rollout.max_response_tokens=2049"],
        ["trainer.max_tokens_per_gpu=642"],
    ),
    Case("token-cap-too-small", [QUICK, "trainer.max_tokens_per_gpu=8"], ["trainer.max_tokens_per_gpu=24"]),
    Case("sequence-parallel-needed", [MOE, "trainer.sequence_parallel=false"], ["trainer.sequence_parallel=true"]),
    Case(
        "architecture-mismatch",
        [BIG, "model.architecture.num_hidden_layers=34"],
        ["model.architecture.num_hidden_layers=36"],
    ),
    Case("architecture-mismatch", [BIG, "model.architecture.head_dim=64"], ["model.architecture.head_dim=128"]),
]
