"""The nouns that travel from a prompt to a gradient. Numbers and lists only: no torch, no config objects.

Every per-token array has the length of `tokens`, and its entry t describes token t; entries on the prompt are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

FINISH_REASONS = ("stop", "length", "abort")


@dataclass(frozen=True)
class Prompt:
    """One row of a dataset, tokenized once. `prompt_id` is stable across epochs: the row's index."""

    prompt_id: int
    messages: tuple[dict[str, str], ...]
    token_ids: tuple[int, ...]
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    response_ids: tuple[int, ...] = ()
    """The response to learn, with its end-of-sequence token; empty where responses are generated."""


@dataclass
class Sample:
    """One completed generation. `tokens` = prompt ids + the very ids the engine sampled.

    tokens [T] int64; loss_mask [T] 0/1, 1 on tokens the policy produced; rollout_logprobs [T] float32 (engine,
    natural log, at the sampling temperature); policy_version = the engine's weights; `prompt_id` groups samples,
    `rollout_id` is one execution: samples of a group that share it are siblings, which an agent returned together, and
    carry one reward between them. A `removed` sample teaches nothing, but still counts wherever samples are counted.
    """

    prompt_id: int
    rollout_id: int
    tokens: np.ndarray
    prompt_length: int
    loss_mask: np.ndarray
    rollout_logprobs: np.ndarray
    finish_reason: str
    policy_version: int
    response_text: str = ""
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    removed: bool = False

    def __post_init__(self) -> None:
        n = len(self.tokens)
        for name in ("loss_mask", "rollout_logprobs"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {n} tokens")
        if not 0 < self.prompt_length <= n:
            raise ValueError(f"prompt_length {self.prompt_length} is not in 1..{n}")
        if self.finish_reason not in FINISH_REASONS:
            raise ValueError(f"finish_reason {self.finish_reason!r} is not one of {FINISH_REASONS}")

    @property
    def response_length(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass
class Group:
    """The samples of one prompt: those of `group_size` rollouts, or of fewer where some were dropped."""

    prompt: Prompt
    samples: list[Sample]


@dataclass
class TokenBatch:
    """What a trainer rank needs for a forward pass: its samples and how they are cut into micro-batches.

    tokens: n arrays [T_i] int64. micro_batches: lists of indices into `tokens`; every data-parallel rank has the
    same number of them (an empty list is a micro-batch without samples, and still takes part in collectives).
    """

    tokens: list[np.ndarray]
    micro_batches: list[list[int]]
    temperature: float = 1.0


@dataclass
class TrainBatch(TokenBatch):
    """One data-parallel rank's share of one optimizer step.

    Per token, [T_i] float32 each: `loss_weights` w (0 off the loss mask). The loss is sum over all samples, tokens
    and ranks of w * x, so denominators are global and fixed before packing: token mean w = mask / sum(mask),
    sequence mean w = mask / sum_i(mask) / n. `advantages`, `old_logprobs` (empty list when they are those of the step's
    own forward pass), `ref_logprobs` (empty list when no KL), `rollout_logprobs`.
    Token t's log-prob is that of tokens[t] given tokens[:t].
    """

    loss_weights: list[np.ndarray] = field(default_factory=list)
    advantages: list[np.ndarray] = field(default_factory=list)
    old_logprobs: list[np.ndarray] = field(default_factory=list)
    ref_logprobs: list[np.ndarray] = field(default_factory=list)
    rollout_logprobs: list[np.ndarray] = field(default_factory=list)


@dataclass
class ValueBatch(TokenBatch):
    """One data-parallel rank's share of one optimizer step of the critic. Per token, [T_i] float32 each: `loss_weights`
    as in TrainBatch, `old_values` (the critic's, before the update) and `returns`. Token t's value is what the critic
    expects from tokens[:t]."""

    loss_weights: list[np.ndarray] = field(default_factory=list)
    old_values: list[np.ndarray] = field(default_factory=list)
    returns: list[np.ndarray] = field(default_factory=list)
