"""Functions of the user's own that look at whole groups, named in YAML by import path and called as f(group).

A hook reads a `rlrun.data.types.Group` and returns its answer; what it changes in the group is its own doing. One with
a parameter `models` is called as f(group, models=...), with the frozen models that are served. Loaded, and its
signature looked at, while planning. Standard library only.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlrun.agents.models import asks, insists
from rlrun.errors import Problem, RlrunError, RunFailed

Hook = Callable[[Any], Any]
Models = Mapping[str, Any] | None
"""The frozen models by name; None when the run serves none."""


def load_function(import_path: str, models: Models = None) -> Hook:
    """The function at `package.module:name`, callable with one argument. Raises RlrunError: `hook-not-importable`, or
    `hook-arguments` when it cannot be called as f(group), or asks for models that there are none of."""
    function = import_function(import_path)
    if insists(function) and models is None:
        summary = f"{import_path} asks for frozen models, and rollout.models has none"
        hint = "add one to rollout.models, with a group in placement.rollout.server_groups that serves it"
        raise RlrunError(Problem("hook-arguments", summary, hint=hint))
    if models is not None and asks(function):
        function = functools.partial(function, models=models)
    _check_signature(import_path, function)
    return function


def import_function(import_path: str) -> Callable[..., Any]:
    """The user's function as it is. Raises RlrunError, `hook-not-importable`."""
    module_name, _, name = import_path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise _not_importable(import_path, f"{type(error).__name__}: {error}") from None
    if not callable(function):
        raise _not_importable(import_path, f"{name} is a {type(function).__name__}, not a function")
    return function


def _not_importable(import_path: str, reason: str) -> RlrunError:
    hint = "give package.module:name of a function that Python can import from here, or install its package"
    return RlrunError(Problem("hook-not-importable", f"cannot load {import_path}: {reason}", hint=hint))


def _check_signature(import_path: str, function: Hook) -> None:
    if inspect.iscoroutinefunction(function):
        summary = f"{import_path} is a coroutine function, and is called as a plain one"
        raise RlrunError(Problem("hook-arguments", summary, hint="make it a plain def"))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins and C functions have none; the first call will tell
        return
    try:
        signature.bind(None)
    except TypeError as error:
        summary = f"{import_path}{signature} cannot be called with one group: {error}"
        raise RlrunError(Problem("hook-arguments", summary, hint="make it a function of one argument")) from None


def load_group_filter(import_path: str, models: Models = None) -> Callable[[Any], bool]:
    """f(group) -> whether the group is kept. A result that is not a bool raises RunFailed when called."""
    function = load_function(import_path, models)

    def keep(group: Any) -> bool:
        value = _call(import_path, function, group)
        if not isinstance(value, bool):
            raise RunFailed("filter", f"{import_path} returned {_short(value)}, not true or false")
        return value

    return keep


def load_sample_filter(import_path: str, models: Models = None) -> Callable[[Any], list[bool]]:
    """f(group) -> whether each of group.samples is learned from."""
    function = load_function(import_path, models)

    def keep(group: Any) -> list[bool]:
        values = _one_each(import_path, _call(import_path, function, group), group)
        if not all(isinstance(v, bool) for v in values):
            raise RunFailed("filter", f"{import_path} returned {_short(values)}, not a true or false for each sample")
        return values

    return keep


def load_postprocess(import_path: str, models: Models = None) -> Callable[[Any], list[float]]:
    """f(group) -> the reward of each of group.samples, a finite number."""
    function = load_function(import_path, models)

    def rewards(group: Any) -> list[float]:
        values = _one_each(import_path, _call(import_path, function, group), group)
        for value in values:
            if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
                raise RunFailed("reward", f"{import_path} returned {_short(value)}, not a finite number")
        return [float(value) for value in values]

    return rewards


def _call(import_path: str, function: Hook, group: Any) -> Any:
    try:
        return function(group)
    except RunFailed:  # of a served model, which says more than the function could
        raise
    except Exception as error:
        what = f"{import_path} raised {type(error).__name__}: {error}"
        raise RunFailed("hook", f"{what} for prompt {group.prompt.prompt_id}") from error


def _one_each(import_path: str, values: Any, group: Any) -> list[Any]:
    if hasattr(values, "tolist"):  # an array
        values = values.tolist()
    n = len(group.samples)
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != n:
        raise RunFailed("hook", f"{import_path} returned {_short(values)}, not one value for each of {n} samples")
    return list(values)


def _short(value: Any, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "..."
