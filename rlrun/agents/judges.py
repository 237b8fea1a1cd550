"""Rewards from a frozen model that is served beside the policy (`rollout.models`)."""

from __future__ import annotations

import re
from typing import Any

QUESTION = """Grade the answer to the task below with a whole number from 0 (useless) to 10 (perfect).

Task:
{prompt}

Answer:
{response}

Reference, if any:
{label}

Write the grade and nothing else."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def graded(
    prompt: Any,
    response_text: str,
    label: Any,
    models: Any,
    model: str = "judge",
    question: str = QUESTION,
    best: float = 10.0,
    max_tokens: int = 1024,
) -> float:
    """The last number in the answer of a judge, as a share of `best`, in [0, 1]; 0 for an answer without one.

    `question` is what it is asked, with {prompt}, {response} and {label}. The judge answers at temperature 0, in its
    own chat template.
    """
    asked = question.format(prompt=_text(prompt), response=response_text, label="" if label is None else label)
    found = _NUMBER.findall(models[model].chat(asked, max_tokens=max_tokens))
    return min(1.0, max(0.0, float(found[-1]) / best)) if found else 0.0


def _text(prompt: Any) -> str:
    """What the last message of the prompt says."""
    return str(prompt.messages[-1]["content"])
