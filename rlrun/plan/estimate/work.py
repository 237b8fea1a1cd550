"""What one step of a run has to do, in the numbers that its time depends on."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from rlrun.plan.gpus import Gpu, profiles
from rlrun.plan.kv import kv_cache
from rlrun.plan.layout import Layout
from rlrun.plan.types import KvPlan


@dataclass(frozen=True)
class Work:
    """Lengths are of one sample. The lengths of responses are taken to be spread evenly around their mean, and the
    longest sample of a rollout to reach the limit."""

    layout: Layout
    gpus_per_node: int
    rollout_gpus: int
    num_samples: int  # that a step learns from
    generated_samples: int  # for them, before any refill
    forward_passes: int  # of the policy and its reference, over the samples of a step
    optimizer_steps: int
    in_flight_samples: int  # over all engines
    max_running_requests: int
    cuda_graph: bool
    prompt_tokens: float
    response_tokens: float  # mean
    longest_response: int
    transport: str  # tensor | distributed | disk | delta
    mode: str  # sync | one_step | fully_async
    max_staleness: int = 0
    pause_mode: str | None = None
    partial_rollout: bool = False
    weight_sync_interval: int = 1
    num_steps: int = 1
    network_gb_per_s: float | None = None  # where it differs from the GPU's profile

    @property
    def gpu(self) -> Gpu:
        found = profiles()[self.layout.gpu]
        return found if self.network_gb_per_s is None else replace(found, network_gb_per_s=self.network_gb_per_s)

    @functools.cached_property
    def kv(self) -> KvPlan:
        return kv_cache(self.layout)

    @property
    def trainer_gpus(self) -> int:
        m = self.layout
        return m.tp * m.pp * m.cp * m.dp

    @property
    def gpus(self) -> int:
        """GPUs of the run."""
        both = (self.trainer_gpus, self.rollout_gpus)
        return max(both) if self.layout.colocated else sum(both)

    @property
    def num_engines(self) -> int:
        return self.rollout_gpus // self.layout.engine_tp

    @property
    def sample_tokens(self) -> float:
        """Mean tokens of prompt and response."""
        return self.prompt_tokens + self.response_tokens

    @property
    def spread(self) -> float:
        """Half the width of the even spread of response lengths: it neither goes below 0 nor beyond the limit."""
        return max(0.0, min(self.response_tokens, self.longest_response - self.response_tokens))

    @property
    def sample_tokens_squared(self) -> float:
        """Mean square of a sample's tokens; an even spread of half-width w has variance w^2 / 3."""
        return self.sample_tokens**2 + self.spread**2 / 3

    @property
    def mean_context(self) -> float:
        """Tokens before the one being decoded, on average over all decoded tokens: E[r^2] / 2E[r] behind the prompt."""
        squared = self.response_tokens**2 + self.spread**2 / 3
        return self.prompt_tokens + squared / (2 * self.response_tokens)

    @property
    def tokens(self) -> float:
        """Tokens of prompts and responses that a step trains on."""
        return self.num_samples * self.sample_tokens
