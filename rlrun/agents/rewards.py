"""Reward functions: `f(prompt, response_text, label, **arguments) -> float`, named in YAML by import path.

`prompt` is a `rlrun.data.types.Prompt`; `response_text` is the decoded response without special tokens; `label` is
what `data.train.label_key` named. A function with a parameter `models` is also given the frozen models that are
served, by name (`rlrun.backends.sglang.served`). Standard library only, so that the plan can check an import path on
any laptop.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

from rlrun.agents.models import asks, insists
from rlrun.errors import Problem, RlrunError, RunFailed

Reward = Callable[[Any, str, Any], float]


def exact_match(prompt: Any, response_text: str, label: Any) -> float:
    """1 if response and label are the same text, blanks at both ends aside; else 0."""
    return float(response_text.strip() == str(label).strip())


def contains(prompt: Any, response_text: str, label: Any) -> float:
    """1 if the label's text, blanks at both ends aside, occurs in the response; else 0."""
    return float(str(label).strip() in response_text)


def position_match(prompt: Any, response_text: str, label: Any) -> float:
    """Share of characters that are right at their position, in [0, 1].

    Over the longer of response and label, so that a response which goes on after the answer, or stops before its end,
    earns less. Two empty texts match.
    """
    label = str(label)
    longest = max(len(label), len(response_text))
    return sum(a == b for a, b in zip(label, response_text, strict=False)) / longest if longest else 1.0


_NUMBER = re.compile(r"(?:(?<![\w).])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
"""A sign counts only where it is not a minus between two numbers; commas only between groups of three digits."""


def number_match(prompt: Any, response_text: str, label: Any) -> float:
    """1 if the last number in the response equals the label, as numbers (1,000 = 1000.0); else 0.

    Raises ValueError when the label is not a number.
    """
    expected = float(str(label).replace(",", ""))
    found = _NUMBER.findall(response_text)
    return float(bool(found) and float(found[-1].replace(",", "")) == expected)


def load_reward(
    import_path: str, arguments: Mapping[str, Any], key: str | None = None, models: Mapping[str, Any] | None = None
) -> Reward:
    """The function at `package.module:name` with `arguments` bound and its results checked. With `key`, it returns a
    dict that has the reward as this entry. `models`, the frozen models by name, are bound too when it asks for them;
    None when the run serves none.

    Raises RlrunError: `reward-not-importable` when there is no such function, `reward-arguments` when it cannot be
    called as f(prompt, response_text, label, **arguments). What it returns raises RunFailed when called: on any
    exception of the function, and on a result (or entry of it) that is not a finite real number.
    """
    function = import_reward(import_path)
    if insists(function) and "models" not in arguments and models is None:
        summary = f"{import_path} asks for frozen models, and rollout.models has none"
        hint = "add one to rollout.models, with a group in placement.rollout.server_groups that serves it"
        raise RlrunError(Problem("reward-arguments", summary, hint=hint))
    if models is not None and asks(function):
        arguments = {"models": models, **arguments}
    _check_signature(import_path, function, arguments)

    def reward(prompt: Any, response_text: str, label: Any) -> float:
        try:
            value = function(prompt, response_text, label, **arguments)
        except RunFailed:  # of a served model, which says more than the function could
            raise
        except Exception as error:
            what = f"{import_path} raised {type(error).__name__}: {error}"
            raise RunFailed("reward", f"{what} for {_quoted(response_text)}, label {_short(label)}") from error
        if key is not None:
            value = _entry(import_path, value, key, response_text)
        return _checked(import_path, value, response_text)

    return reward


def import_reward(import_path: str) -> Callable[..., Any]:
    """The user's function as it is. Raises RlrunError, `reward-not-importable`."""
    module_name, _, name = import_path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
    else:
        if callable(function):
            return function
        reason = f"{name} is a {type(function).__name__}, not a function"
    hint = "give package.module:name of a function that Python can import from here, or install its package"
    raise RlrunError(Problem("reward-not-importable", f"cannot load reward {import_path}: {reason}", hint=hint))


def _check_signature(import_path: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins and C functions have none; the first call will tell
        return
    try:
        signature.bind(None, "", None, **arguments)
    except TypeError as error:
        given = ", ".join(["prompt", "response_text", "label", *(f"{key}=" for key in arguments)])
        summary = f"{import_path}{signature} cannot be called with ({given}): {error}"
        raise RlrunError(Problem("reward-arguments", summary, hint="change reward.arguments or the function")) from None
    if inspect.iscoroutinefunction(function):
        summary = f"{import_path} is a coroutine function; a reward is a plain function (it runs in a thread)"
        raise RlrunError(Problem("reward-arguments", summary, hint="make it a plain def"))


def _entry(import_path: str, value: Any, key: str, response_text: str) -> Any:
    if not isinstance(value, Mapping):
        summary = (
            f"{import_path} returned {_short(value)} ({type(value).__name__}), and reward.key names an entry of it"
        )
        raise RunFailed("reward", summary, "set reward.key to null, or return a dict")
    if key not in value:
        entries = ", ".join(map(str, value)) or "nothing"
        summary = f"{import_path} returned a dict with {entries}, not {key}, for {_quoted(response_text)}"
        raise RunFailed("reward", summary, "set reward.key to an entry that is always there")
    return value[key]


def _checked(import_path: str, value: Any, response_text: str) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    summary = f"{import_path} returned {_short(value)} ({type(value).__name__}) for {_quoted(response_text)}"
    hint = "return a finite float"
    if isinstance(value, dict):
        hint = f"set reward.key to one of its entries: {', '.join(map(str, value))}"
    raise RunFailed("reward", summary, hint)


def _short(value: Any, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."


def _quoted(response_text: str) -> str:
    return f"response {_short(response_text)}"
