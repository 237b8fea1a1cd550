"""Deadlines and lengths that contradict the estimate of a step's time."""

from __future__ import annotations

from case import BIG, Case

LONG = ["rollout.max_response_tokens=32768", "algo.prompts_per_rollout=512", "algo.groups_per_step=512"]

NETWORK = "placement.network_gb_per_s"

CASES = [
    Case("inactive-key", [BIG, f"{NETWORK}=25"], [f"{NETWORK}=null"]),
    Case("inactive-key", ["+experiment=quickstart", f"{NETWORK}=25"], [f"{NETWORK}=null"]),
    Case("timeout-too-short", [BIG, "timeouts.generate_s=10"], ["timeouts.generate_s=130"]),
    Case("timeout-too-short", [BIG, "timeouts.train_s=5"], ["timeouts.train_s=29"]),
    Case("timeout-too-short", [BIG, "timeouts.sync_s=0.5"], ["timeouts.sync_s=3"]),
    Case("timeout-too-short", [BIG, "rollout.request_timeout_s=10"], ["rollout.request_timeout_s=120"]),
    Case("timeout-too-short", [BIG, *LONG], ["timeouts.generate_s=36000", "rollout.request_timeout_s=3600"]),
    Case(
        "expected-length-above-limit",
        [BIG, "rollout.expected_response_tokens=4096"],
        ["rollout.expected_response_tokens=1024"],
    ),
    Case(
        "inactive-key",
        ["+experiment=quickstart", "rollout.expected_response_tokens=4"],
        ["rollout.expected_response_tokens=null"],
    ),
]
