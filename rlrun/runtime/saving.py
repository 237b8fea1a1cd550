"""When a run is saved: its checkpoints, at once or beside the training, and policies in Hugging Face format."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rlrun.errors import RunFailed

if TYPE_CHECKING:
    from rlrun.runtime.loop import Run


def after_step(run: Run) -> dict[str, float]:
    """Saves what is due after a step, and completes what was being written. The last step is always saved, and nothing
    is in the making after it."""
    due = checkpoint_due(run)
    metrics: dict[str, float] = {}
    finishes = run.store.pending and (due or run.trainer.save_done())
    if due or finishes:
        with run.phase("save"):
            if finishes:
                metrics["perf/save_background_s"] = _finish(run)
            if due and run.plan.checkpoint.async_save and run.step < run.last_step:
                run.store.begin(run.state(), run.trainer, run.buffer)
            elif due:
                run.last_checkpoint = run.store.save(run.state(), run.trainer, run.buffer)
    if hf_due(run):
        with run.phase("hf"):
            run.store.export_hf(run.step, run.trainer)
    return metrics


def checkpoint_due(run: Run) -> bool:
    interval = run.plan.checkpoint.interval
    return run.step == run.last_step or (interval is not None and run.step % interval == 0)


def hf_due(run: Run) -> bool:
    """The very last policy is written once, by the export at the end."""
    plan = run.plan.checkpoint
    if plan.hf_interval is None or run.step % plan.hf_interval:
        return False
    return not (plan.hf_at_end and run.step == run.plan.num_steps)


def after_failure(run: Run, error: RunFailed) -> None:
    """Completes a checkpoint that is being written when the run breaks, unless it was a trainer rank that broke: the
    others may wait for that one."""
    if run.store.pending and not error.part.startswith("trainer rank"):
        with contextlib.suppress(RunFailed, OSError):
            _finish(run)


def _finish(run: Run) -> float:
    run.last_checkpoint, seconds = run.store.finish(run.trainer)
    return seconds
