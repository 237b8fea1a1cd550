"""Prompts, reward and evaluation."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rlrun.config.sections.base import NOT_SEMANTIC, ImportPath, Positive, Seconds, Section


class DatasetConfig(Section):
    path: str
    """JSONL file, one object a line."""
    prompt_key: str = "prompt"
    """Field with the prompt: a string, or a list of {role, content} messages."""
    label_key: str | None = "label"
    """Field handed to the reward function as `label`."""


class DataConfig(Section):
    train: DatasetConfig
    """Prompts to learn from."""
    eval: DatasetConfig | None = None
    """Prompts to measure on; needs eval.interval."""
    shuffle: bool = True
    """Reshuffle the training prompts each epoch, by seed and epoch."""
    system_prompt: str | None = None
    """System message put before every prompt given as a string."""


class RewardConfig(Section):
    function: ImportPath
    """Reward function as package.module:name, called as f(prompt, response_text, label, **arguments) -> float."""
    arguments: dict[str, Any] = Field(default={})
    """Keyword arguments passed to it."""
    timeout_s: Seconds = Field(default=60.0, json_schema_extra=NOT_SEMANTIC)
    """Deadline of one call."""


class EvalConfig(Section):
    interval: Positive | None = None
    """Evaluate every so many steps, and after the last one; null never."""
    before_train: bool = True
    """Also evaluate before the first step."""
    samples_per_prompt: Positive = 1
    """Samples drawn for each evaluation prompt."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw from the most probable tokens that together have this probability; 1 is all of them."""
    top_k: Annotated[int, Field(ge=-1)] = -1
    """Draw from so many most probable tokens; -1 is all of them."""
    max_prompts: Positive | None = None
    """Use only the first so many prompts."""
