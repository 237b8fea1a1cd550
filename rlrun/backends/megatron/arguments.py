"""`trainer.megatron`: arguments that a user passes on, for each of Megatron's config objects."""

from __future__ import annotations

from typing import Any

import torch

from rlrun.config.arguments.megatron import ALWAYS
from rlrun.config.arguments.table import table
from rlrun.plan.types import TrainPlan


def passed_on(train: TrainPlan, target: str) -> dict[str, Any]:
    """Keyword arguments of one object: `transformer`, `optimizer` or `ddp`. What rlrun always sets is among them,
    unless the plan has another value. A name that several objects have goes to all of them."""
    known = table("megatron").arguments
    values = ALWAYS | dict(train.megatron)
    return {name: _typed(value, known[name].types) for name, value in values.items() if target in known[name].objects}


def _typed(value: Any, types: tuple[str, ...]) -> Any:
    """A value of YAML as Megatron takes it."""
    if "dtype" in types and value is not None:
        return getattr(torch, value)
    if "enum" in types and value is not None:
        from megatron.core.transformer.enums import AttnBackend

        return AttnBackend[value]
    return value
