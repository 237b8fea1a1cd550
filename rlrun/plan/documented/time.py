"""Codes: time."""

from __future__ import annotations

CODES: dict[str, str] = {
    "timeout-too-short": (
        "By the estimates of rlrun/plan/estimate a phase, or the longest sample, takes longer than its deadline: the "
        "run would hold its GPUs, work, and end as late. Estimates may be off by a factor of two, so set the "
        "deadline to several times the estimate, or give the phase less to do: shorter responses, more GPUs, larger "
        "engines, rollout.sglang.cuda_graph."
    ),
    "expected-length-above-limit": (
        "rollout.expected_response_tokens is the mean length of responses, for the estimate of a step's time, and no "
        "response is longer than rollout.max_response_tokens."
    ),
}
