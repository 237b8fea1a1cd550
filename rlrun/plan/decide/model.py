"""Where the weights come from."""

from __future__ import annotations

from rlrun.config.partial import Partial
from rlrun.config.schema import RunConfig
from rlrun.plan.context import Context
from rlrun.plan.parts.model import ModelPlan

BYTES = {"float32": 4, "bfloat16": 2}


def dtype(config: RunConfig | Partial) -> str:
    """Of weights and activations."""
    return by_device(config.model.dtype, config.placement.device)


def by_device(written: str, device: str) -> str:
    return {"cpu": "float32", "cuda": "bfloat16"}[device] if written == "auto" else written


def gdn_backend(config: RunConfig | Partial) -> str:
    """auto stays where only the trainer's nodes can answer it."""
    wanted = config.model.gdn_backend
    return "torch" if wanted == "auto" and no_gdn_kernels(config) else wanted


def no_gdn_kernels(config: RunConfig | Partial) -> str | None:
    """The key because of which a gated delta net can only be computed by torch; None when kernels can run."""
    if config.placement.device == "cpu":
        return "placement.device"
    return "model.dtype" if dtype(config) != "bfloat16" else None


def model_plan(c: Context) -> ModelPlan:
    m = c.config.model
    path = None if m.init == "random" else c.model_dir or m.path
    return ModelPlan(m.name, c.spec, m.init, path, m.alphabet, dtype(c.config))
