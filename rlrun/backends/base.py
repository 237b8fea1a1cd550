"""The two sides of a run, as narrow verbs. Real implementations live in `megatron/` and `sglang/`; `fake.py` holds
deterministic ones for unit tests, behind the same contract suite. No heavy imports here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rlrun.data.types import TokenBatch, TrainBatch, ValueBatch


@dataclass(frozen=True)
class Rendezvous:
    """Where the trainer ranks meet."""

    rank: int
    world_size: int
    host: str
    port: int


@dataclass(frozen=True)
class RankInfo:
    """Coordinates of a trainer rank. `reports` is true on the one rank of each data-parallel group (tp 0, cp 0,
    last pp stage) whose return values count; the others return empty results."""

    rank: int
    dp: int
    tp: int
    pp: int
    cp: int
    reports: bool
    notes: tuple[str, ...] = ()  # what the user should read once, the same on every rank


@dataclass(frozen=True)
class EngineAddress:
    index: int
    url: str  # http://host:port
    tp: int
    external: bool = False  # somebody else has started it

    @property
    def name(self) -> str:
        """In messages."""
        return f"external engine {self.url}" if self.external else f"engine {self.index}"


@dataclass(frozen=True)
class TrainMetrics:
    """One optimizer step, already summed over all ranks: loss, pg_loss, kl_loss, grad_norm, lr, clip fractions, ..."""

    values: dict[str, float]


class TrainBackend(Protocol):
    """One trainer rank. Every method is collective: all ranks call it, in the same order. Not thread-safe."""

    def start(self, rendezvous: Rendezvous, model_dir: str) -> RankInfo:
        """Joins the process group, builds the model, optimizer and schedule (and the critic's, when the plan has one),
        loads the HF weights in `model_dir` (as policy, and as reference when the plan uses one and names no other
        folder)."""
        ...

    def logprobs(self, batch: TokenBatch, model: str = "policy") -> list[np.ndarray]:
        """Log-probs of every token given its predecessors, [T_i] float32 each, entry 0 is 0, logits divided by
        batch.temperature. `model` is policy, reference or teacher. Empty list on ranks that do not report."""
        ...

    def train_step(self, batch: TrainBatch) -> TrainMetrics:
        """Forward, loss, backward, gradient reduction and clipping, AdamW, learning-rate schedule."""
        ...

    def values(self, batch: TokenBatch) -> list[np.ndarray]:
        """The critic's values, aligned like log-probs: [T_i] float32 each, entry t is the return it expects from the
        tokens before t, entry 0 is 0. No temperature. Empty list on ranks that do not report."""
        ...

    def value_step(self, batch: ValueBatch) -> TrainMetrics:
        """As train_step, for the critic: value_loss, value_clip_fraction, grad_norm, lr."""
        ...

    def park(self, keep_weights: bool) -> float:
        """Moves what this rank holds to host memory, for the engines to have the GPU; with `keep_weights` the policy's
        weights stay, for a push. May be called again to move those too. Verbs that need what is away assert. Returns
        seconds."""
        ...

    def unpark(self, weights_only: bool = False) -> float:
        """Brings everything back, bit for bit, or the policy's weights alone. Returns seconds."""
        ...

    def memory(self) -> dict[str, float]:
        """Bytes, now: `host_used` of the node, `host_rss` of this process, `host_parked` held for parking; on a GPU
        also `gpu_used` of the whole device, `gpu_reserved` by this process's allocator, and `gpu_peak`, the most it has
        had allocated since the last call. Not collective."""
        ...

    def connect_engines(self, engines: Sequence[EngineAddress], run_dir: str) -> None:
        """Opens the weight-sync transport of the plan. `run_dir`: the run's folder, for what travels by disk."""
        ...

    def publish(self, engines: Sequence[EngineAddress], version: int) -> dict[str, float]:
        """Sends the current weights to all engines as `version`; returns bytes and seconds. Raises if an engine
        refuses, or if the names sent are not the names expected."""
        ...

    def save(self, directory: str) -> None:
        """Model, optimizer, LR schedule and RNG state of all ranks, and the critic's, by dist_checkpointing, into an
        empty folder."""
        ...

    def begin_save(self, directory: str) -> None:
        """As `save`, but returns when the state has been copied: the files are written beside what follows, and hold
        the state of now. `finish_save` comes before the next save."""
        ...

    def save_done(self) -> bool:
        """Whether this rank has nothing left to write. Alone among these not collective."""
        ...

    def finish_save(self) -> float:
        """Completes what `begin_save` began, and waits for it if it must. Returns the seconds the slowest rank wrote.
        Raises RunFailed, on every rank, when one could not write its files."""
        ...

    def load(self, directory: str) -> None:
        """The inverse of save, also into another parallel layout."""
        ...

    def export_hf(self, directory: str) -> None:
        """The policy as Hugging Face safetensors + config.json + tokenizer files."""
        ...

    def digest(self) -> dict[str, str]:
        """sha256 of this rank's weights, optimizer state, RNG and LR, and the critic's, to compare two runs bit for
        bit."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class GenerateRequest:
    """`len(seeds)` samples of one prompt (seeds are None when the rollout is not seeded). Log-probs are those of
    the whole distribution, also when `top_p` or `top_k` cut it."""

    token_ids: tuple[int, ...]
    seeds: tuple[int | None, ...]
    temperature: float
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True)
class Completion:
    """What the engine sampled: `token_ids` include the stop token when one ended the sample."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str  # stop | length | abort
    policy_version: int
    text: str
    extra: dict[str, Any] = field(default_factory=dict)


class RolloutBackend(Protocol):
    """A client of the running engines (through the router when there is one)."""

    async def generate(self, request: GenerateRequest) -> list[Completion]:
        """One Completion for each seed, in order. Retries with a deadline; raises RunFailed when it gives up."""
        ...

    async def score(self, token_ids: Sequence[int], engine: int) -> list[float]:
        """Log-probs of token_ids[1:] under one engine at temperature 1 (the canary)."""
        ...

    async def versions(self) -> list[int]:
        """Weight version that each engine reports."""
        ...

    async def close(self) -> None: ...
