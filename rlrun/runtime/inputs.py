"""Tokenizer, tokenized prompts and the reward function: read before Ray starts, so that a prompt that is too long or a
reward that does not import is a configuration error, not a failed run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rlrun.agents.hooks import load_group_filter, load_postprocess, load_sample_filter
from rlrun.agents.rewards import load_reward
from rlrun.algos.advantages import estimator
from rlrun.backends.sglang.served import ServedModels
from rlrun.data.prompts import load_rows, tokenize_prompts, tokenize_responses
from rlrun.data.selection import Hooks
from rlrun.data.types import Prompt
from rlrun.errors import Problem, RlrunError
from rlrun.plan.types import DatasetPlan, RunPlan


@dataclass(frozen=True)
class Inputs:
    tokenizer: Any
    train: list[Prompt]
    eval: list[Prompt]
    reward: Callable[[Prompt, str, Any], float] | None  # None when nothing is rewarded
    hooks: Hooks
    models: ServedModels = field(default_factory=ServedModels)
    """The frozen models, as the user's functions are given them; filled when they are up."""


def load_inputs(plan: RunPlan, model_dir: str) -> Inputs:
    """Raises RlrunError with the problems of both datasets together; RunFailed when an estimator of the user's own
    cannot be imported."""
    if plan.critic is None:  # gae is made of a critic's values, and not one of these
        estimator(plan.algo.advantage, plan.algo.normalize_by_std, plan.algo.gamma)
    tokenizer = load_tokenizer(model_dir)
    prompts: dict[str, list[Prompt]] = {"train": [], "eval": []}
    problems: list[Problem] = []
    for name, dataset in (("train", plan.data.train), ("eval", plan.data.eval)):
        if dataset is not None:
            try:
                prompts[name] = _prompts(plan, dataset, tokenizer)
            except RlrunError as e:
                problems += e.problems
    if problems:
        raise RlrunError(problems)
    if plan.eval is not None and plan.eval.max_prompts is not None:
        prompts["eval"] = prompts["eval"][: plan.eval.max_prompts]
    models = ServedModels()
    served = models if plan.deployment.models else None
    reward = None
    if plan.reward is not None:
        reward = load_reward(plan.reward.function, plan.reward.arguments, plan.reward.key, served)
    return Inputs(tokenizer, prompts["train"], prompts["eval"], reward, load_hooks(plan, served), models)


def load_hooks(plan: RunPlan, models: ServedModels | None = None) -> Hooks:
    """The user's functions that look at groups; the plan has imported them before."""
    s, postprocess = plan.sampling, plan.reward.postprocess if plan.reward is not None else None
    return Hooks(
        postprocess=load_postprocess(postprocess, models) if postprocess is not None else None,
        group_filter=load_group_filter(s.filter, models) if ":" in s.filter else None,
        sample_filter=load_sample_filter(s.sample_filter, models) if s.sample_filter is not None else None,
    )


def load_tokenizer(model_dir: str) -> Any:
    from rlrun.backends.sglang.cpu import install_torchvision_ops

    install_torchvision_ops()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


def _prompts(plan: RunPlan, dataset: DatasetPlan, tokenizer: Any) -> list[Prompt]:
    rows = load_rows(dataset.path, dataset.prompt_key, dataset.label_key, dataset.response_key)
    limits, path = plan.rollout, dataset.path
    prompts: list[Prompt] = []
    responses: list[tuple[int, ...]] = []
    problems: list[Problem] = []
    try:
        prompts = tokenize_prompts(rows, tokenizer, plan.data.system_prompt, limits.max_prompt_tokens, path)
    except RlrunError as e:
        problems += e.problems
    try:
        if dataset.response_key is not None:
            responses = tokenize_responses(rows, tokenizer, limits.max_response_tokens, path)
    except RlrunError as e:
        problems += e.problems
    if problems:
        raise RlrunError(problems)
    return [replace(p, response_ids=ids) for p, ids in zip(prompts, responses, strict=True)] if responses else prompts
