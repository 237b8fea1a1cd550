"""Codes: a run that exists."""

from __future__ import annotations

CODES: dict[str, str] = {
    "run-failed": (
        "A run had started and broke. The message says which part, doing what; the run folder has its logs, "
        "and `rlrun resume` goes on from the last checkpoint."
    ),
    "no-run-there": "The folder given to `rlrun resume` or `rlrun diff` is not that of a run: it has no plan.json.",
    "no-checkpoint": (
        "The run stopped before it saved anything, so there is nothing to go on from. checkpoint.interval "
        "makes runs save earlier."
    ),
    "hf-interval-longer-than-run": (
        "checkpoint.hf_interval exports the policy along the way, and the run ends before the first time. The last "
        "policy is checkpoint.hf_at_end's business."
    ),
    "keep-every-between-saves": (
        "checkpoint.keep_every keeps what is saved at its multiples, and has to be a multiple of checkpoint.interval, "
        "and of checkpoint.hf_interval where hf_keep deletes exports: at other steps nothing is saved."
    ),
    "checkpoint-damaged": (
        "A file of the newest checkpoint is gone, or has another size than when it was saved, so the disk lost it or "
        "somebody changed it. Nothing goes back to an older checkpoint by itself: that costs steps. The message has "
        "the command that puts the damaged one away, after which `rlrun resume` goes on from the one before it."
    ),
    "run-finished": "The run has reached num_steps. With a constant learning rate it can be given more.",
    "stop-already-passed": "stop_after lies at or before the step from which the run would go on.",
    "data-changed": (
        "The training file has another number of prompts than when the checkpoint was made, so the place in "
        "it from which the run would go on means something else."
    ),
    "resume-changes-experiment": (
        "A resumed run is the same experiment: placement, tracking and the like may change, what is learned "
        "may not. The differing keys are listed with both values."
    ),
}
