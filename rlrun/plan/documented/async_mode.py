"""Codes: asynchronous modes."""

from __future__ import annotations

CODES: dict[str, str] = {
    "staleness-of-other-mode": (
        "async_mode.max_staleness is 0 in sync, where a sample is trained on by the weights that drew it, 1 in "
        "one_step, where the next rollout is drawn while this one trains, and 1 or more in fully_async."
    ),
    "async-colocated": (
        "one_step and fully_async generate and train at the same time. Colocated trainer and engines take turns on the "
        "same GPUs, so there is nothing to overlap: an asynchronous run needs a disaggregated placement."
    ),
    "async-optimizer-steps": (
        "async_mode.max_staleness counts steps of the loop. With several optimizer steps in each of them the later "
        "ones train on samples that are older still, and nothing would say so. In asynchronous modes a step of the "
        "loop is one optimizer step: algo.groups_per_step equals algo.prompts_per_rollout."
    ),
    "sync-interval-too-long": (
        "Between two weight syncs the engines' weights age by a version each step. async_mode.weight_sync_interval may "
        "be at most async_mode.max_staleness, or samples would be too old as soon as they are drawn."
    ),
    "in-flight-above-capacity": (
        "So that no sample is older than async_mode.max_staleness when it is trained on, at most (max_staleness - "
        "weight_sync_interval + 2) x algo.prompts_per_rollout groups may be in flight or waiting. A larger "
        "async_mode.max_in_flight_groups would never be reached."
    ),
    "seeded-not-repeatable": (
        "rollout.seeded exists to repeat a run. In fully_async it depends on timing which version of the weights draws "
        "which sample, so the same seeds give different runs."
    ),
}
