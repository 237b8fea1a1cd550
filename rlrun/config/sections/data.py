"""Prompts, reward and evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rlrun.config.sections.base import (
    NOT_SEMANTIC,
    ImportPath,
    NonNegative,
    NotEmpty,
    Positive,
    Seconds,
    Section,
    one_of_ours_or_a_path,
)

FILTERS = ("none", "drop_zero_variance")


class DatasetConfig(Section):
    path: str
    """JSONL file, one object a line."""
    prompt_key: str = "prompt"
    """Field with the prompt: a string, or a list of {role, content} messages."""
    label_key: str | None = "label"
    """Field handed to the reward function as `label`."""


class TrainDatasetConfig(DatasetConfig):
    response_key: NotEmpty | None = None
    """Field with the response to learn, a text. algo.loss=sft only, where it is needed."""


class DataConfig(Section):
    train: TrainDatasetConfig
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
    key: NotEmpty | None = None
    """The reward function returns a dict, and this entry of it is the reward."""
    postprocess: ImportPath | None = None
    """Function f(group) -> one reward for each of group.samples, called before anything else looks at them. Evaluation
    reports the rewards as they were."""
    timeout_s: Seconds = Field(default=60.0, json_schema_extra=NOT_SEMANTIC)
    """Deadline of one call."""


class DynamicSamplingConfig(Section):
    """Which of the generated groups are learned from, and how many are generated so that there are enough."""

    filter: Annotated[str, Field(pattern=one_of_ours_or_a_path(*FILTERS))] = "none"
    """Groups that are kept. drop_zero_variance: those whose rewards are not all equal (DAPO); a group of equal rewards
    teaches nothing. Or a function f(group) -> bool."""
    over_sampling: Annotated[float, Field(ge=1, le=16)] = 1.0
    """Prompts generated at a time, as a multiple of the groups still needed."""
    max_refills: NonNegative = 3
    """Times that more prompts are generated because too few groups were kept, before the run fails."""
    surplus: Literal["discard", "buffer"] = "discard"
    """Groups kept beyond those needed. discard: they are dropped, and every sample is of the current version. buffer:
    they are the first of the next step, one policy version older than the others, also in a synchronous run (the
    differences between engine and trainer then hold an update as well); what is older than that is dropped."""
    sample_filter: ImportPath | None = None
    """Function f(group) -> one bool for each of group.samples. A sample with false teaches nothing, and still counts in
    the baseline of its group and in the loss's denominator."""


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
