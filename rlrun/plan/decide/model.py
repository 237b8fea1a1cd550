"""Where the weights come from."""

from __future__ import annotations

from rlrun.plan.context import Context
from rlrun.plan.parts.model import ModelPlan

BYTES = {"float32": 4, "bfloat16": 2}


def model_plan(c: Context) -> ModelPlan:
    m, device = c.config.model, c.config.placement.device
    dtype = {"cpu": "float32", "cuda": "bfloat16"}[device] if m.dtype == "auto" else m.dtype
    path = None if m.init == "random" else c.model_dir or m.path
    return ModelPlan(m.name, c.spec, m.init, path, m.alphabet, dtype)
