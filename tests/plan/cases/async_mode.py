"""Asynchronous modes: what is refused, and that the hint cures it."""

from __future__ import annotations

from case import BIG, Case

SPLIT = "placement=split_8gpu"
ONE, FULLY = "async_mode=one_step", "async_mode=fully_async"

CASES = [
    Case("staleness-of-other-mode", [BIG, "async_mode.max_staleness=1"], ["async_mode.max_staleness=0"]),
    Case("staleness-of-other-mode", [BIG, SPLIT, ONE, "async_mode.max_staleness=0"], ["async_mode.max_staleness=1"]),
    Case("staleness-of-other-mode", [BIG, SPLIT, FULLY, "async_mode.max_staleness=0"], ["async_mode.max_staleness=1"]),
    Case("async-colocated", [BIG, ONE], ["placement.mode=disaggregated"]),
    Case("async-colocated", [BIG, FULLY], ["placement.mode=disaggregated"]),
    Case("async-optimizer-steps", [BIG, SPLIT, ONE, "algo.groups_per_step=16"], ["algo.groups_per_step=64"]),
    Case(
        "sync-interval-too-long",
        [BIG, SPLIT, FULLY, "async_mode.weight_sync_interval=3"],
        ["async_mode.weight_sync_interval=2"],
    ),
    Case(
        "sync-interval-too-long",
        [BIG, SPLIT, FULLY, "async_mode.weight_sync_interval=3"],
        ["async_mode.max_staleness=3"],
    ),
    Case(
        "in-flight-above-capacity",
        [BIG, SPLIT, FULLY, "async_mode.max_in_flight_groups=193"],
        ["async_mode.max_in_flight_groups=192"],
    ),
    Case(
        "too-few-samples",
        [
            BIG,
            SPLIT,
            FULLY,
            "async_mode.max_in_flight_groups=1",
            "algo.group_size=2",
            "placement.trainer.gpus=4",
            "placement.rollout.gpus_per_engine=1",
        ],
        ["async_mode.max_in_flight_groups=2"],
    ),
    Case("seeded-not-repeatable", [BIG, SPLIT, FULLY, "rollout.seeded=true"], ["rollout.seeded=false"]),
    Case("missing-value", [BIG, SPLIT, FULLY, "async_mode.pause_mode=null"], ["async_mode.pause_mode=abort"]),
    Case("inactive-key", [BIG, SPLIT, FULLY, "async_mode.pause_mode=retract"], ["async_mode.partial_rollout=false"]),
    Case("inactive-key", [BIG, "async_mode.pause_mode=abort"], ["async_mode.pause_mode=null"]),
    Case("inactive-key", [BIG, "async_mode.partial_rollout=true"], ["async_mode.partial_rollout=false"]),
    Case(
        "inactive-key",
        [BIG, SPLIT, ONE, "async_mode.max_in_flight_groups=8"],
        ["async_mode.max_in_flight_groups=null"],
    ),
    Case("inactive-key", [BIG, SPLIT, ONE, "async_mode.weight_sync_interval=2"], ["async_mode.weight_sync_interval=1"]),
    Case("inactive-key", [BIG, SPLIT, FULLY, "rollout.max_concurrent_groups=8"], ["rollout.max_concurrent_groups=256"]),
]
