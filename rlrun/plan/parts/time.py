"""How long a step takes, estimated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseTime:
    phase: str  # generate | logprob | train | sync
    seconds: float


@dataclass(frozen=True)
class TimePlan:
    """Estimated seconds of a step, without evaluation and checkpoints; see `rlrun.plan.estimate`."""

    phases: tuple[PhaseTime, ...]
    step_s: float
    tokens_per_s: float  # prompts and responses
    bubble: float  # share of GPU time in which a GPU waits
    staleness: float  # mean versions
    run_hours: float
    gpu_hours: float
    prompt_tokens: float  # assumed mean
    response_tokens: float  # assumed mean
    running: int  # samples decoded together in an engine, at most
    decode_step_s: float
    decode_bound: str  # memory bandwidth | arithmetic | kernel launches
    tail_s: float  # of generate, in which engines are not full
    interrupted_s: float  # of generate, repeated because of weight syncs
    longest_request_s: float  # from its first token to its last
