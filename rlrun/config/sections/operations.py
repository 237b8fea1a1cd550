"""Checkpoints, tracking, deadlines."""

from __future__ import annotations

from typing import Literal

from rlrun.config.sections.base import NotEmpty, Positive, Seconds, Section


class CheckpointConfig(Section):
    interval: Positive | None = None
    """Save every so many steps; the last step is always saved. Null saves only the last."""
    keep: Positive = 2
    """Newest checkpoints kept. An older one goes when a newer one is complete."""
    keep_every: Positive | None = None
    """Checkpoints and exports of every so many steps are kept for good, whatever `keep` and `hf_keep` say."""
    async_save: bool = False
    """Copy the state to host memory, and write it while training goes on; the checkpoint appears when it is complete.
    The last one is written before the run ends. The copy stays in host memory until then."""
    gather: Literal["gpu", "host"] = "gpu"
    """Where the shards of the distributed optimizer are joined while a checkpoint is saved. gpu: by NCCL, a float32
    tensor of every parameter at once on every GPU, all of them on every host. host: by gloo, on the first data-parallel
    replica alone; slower, and no GPU memory."""
    hf_at_end: bool = True
    """Also write the final weights as a Hugging Face checkpoint."""
    hf_interval: Positive | None = None
    """Also write the weights as a Hugging Face checkpoint every so many steps, to hf_steps/step_000010 in the run's
    folder. Null writes none before the end."""
    hf_keep: Positive | None = None
    """Newest exports in hf_steps kept; null keeps all."""
    digest: bool = False
    """Write sha256 of every rank's weights, optimizer, random and learning-rate state beside each checkpoint, to
    compare two runs bit for bit. Reads all state once, so slow on large models."""


class TrackingConfig(Section):
    enabled: bool = True
    """Log to MLflow."""
    uri: NotEmpty | None = None
    """MLflow tracking URI; null is a sqlite file in `output_dir`."""
    experiment: NotEmpty | None = None
    """MLflow experiment; null is the run's name."""


class TimeoutsConfig(Section):
    """Deadlines of the phases; a phase that misses its own ends the run with the part that was late."""

    start_s: Seconds = 900.0
    """Ray, trainer and engines ready."""
    generate_s: Seconds = 3600.0
    """One step's rollout."""
    train_s: Seconds = 3600.0
    """One pass of log-probs over a rollout, or one optimizer step."""
    sync_s: Seconds = 600.0
    """One weight sync."""
    save_s: Seconds = 1800.0
    """One checkpoint."""
