"""Which of the user's functions ask for the frozen models that are served: those with a parameter named `models`.

Standard library only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

NAME = "models"


def asks(function: Callable[..., Any]) -> bool:
    """Whether the function can be given `models=...` by its own declaration; **kwargs alone does not ask."""
    return _parameter(function) is not None


def insists(function: Callable[..., Any]) -> bool:
    """Whether it cannot be called without."""
    parameter = _parameter(function)
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _parameter(function: Callable[..., Any]) -> inspect.Parameter | None:
    try:
        found = inspect.signature(function).parameters.get(NAME)
    except (TypeError, ValueError):  # some builtins and C functions have no signature
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return found if found is not None and found.kind in named else None
