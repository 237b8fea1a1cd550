"""What the tests of conversions run on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from family_jobs import exported

from rlrun.backends.base import Rendezvous
from rlrun.plan.types import RunPlan

FACTOR = 1.5


def save_changed(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str) -> dict[str, np.ndarray]:
    """Changes every weight, saves a checkpoint as a run does, and returns what it holds (rank 0)."""
    from megatron_jobs import started

    from rlrun.backends.megatron import cpu

    with started(rendezvous, plan, model_dir) as trainer, torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.mul_(FACTOR)
        trainer.save(directory)
        with cpu.shim():
            return exported(trainer)


def load_converted(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, weights: str) -> dict[str, Any]:
    """The weights of a converted checkpoint, in this layout, after every other weight was forgotten (rank 0)."""
    from pathlib import Path

    from megatron_jobs import started

    from rlrun.backends.megatron import cpu
    from rlrun.convert import megatron

    with started(rendezvous, plan, model_dir) as trainer, torch.no_grad(), cpu.shim():
        for parameter in trainer.model.parameters():
            parameter.fill_(float("nan"))
        megatron.load(trainer.model, Path(weights))
        return exported(trainer)
