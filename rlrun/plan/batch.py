"""Batch arithmetic of a configuration: how many groups are generated, kept and learned from at once."""

from __future__ import annotations

import math
from typing import Any


def drops_groups(config: Any) -> bool:
    """Whether a generated group may be left out, so that more of them have to be generated than are needed."""
    return config.dynamic_sampling.filter != "none" or config.rollout.overlong == "drop"


def first_draw(config: Any) -> int:
    """Prompts that a step of the loop generates before any refill."""
    prompts = config.algo.prompts_per_rollout
    return math.ceil(prompts * config.dynamic_sampling.over_sampling) if drops_groups(config) else prompts


def largest_step(config: Any) -> int:
    """Groups of the largest optimizer step there can be."""
    return config.algo.groups_per_step or first_draw(config)


def steps_per_rollout(config: Any) -> int:
    """Optimizer steps of one step of the loop."""
    a = config.algo
    return a.prompts_per_rollout // a.groups_per_step if a.groups_per_step else 1
