"""Estimators and losses of the user's own, by import path. The plan has checked name and signature without importing
anything (`rlrun.plan.functions`); here they are imported, where the run needs them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.errors import RunFailed

if TYPE_CHECKING:
    from rlrun.algos.advantages import Advantages, Estimator, Scored


def load_function(part: str, import_path: str) -> Callable[..., Any]:
    """The function at `package.module:name`; RunFailed when it cannot be imported. `part` names what wants it."""
    module, _, name = import_path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise RunFailed(part, f"cannot load {import_path}: {type(error).__name__}: {error}") from error


def checked_estimator(import_path: str) -> Estimator:
    """The user's f(scored), whose result is one finite number a sample, or one array a sample."""
    function = load_function("advantages", import_path)

    def estimate(scored: Scored) -> Advantages:
        try:
            values = function(scored)
        except Exception as error:
            raise RunFailed("advantages", f"{import_path} raised {type(error).__name__}: {error}") from error
        lengths = [len(mask) for mask in scored.masks]
        if isinstance(values, np.ndarray) and values.shape == (len(lengths),):
            result: Advantages = values.astype(np.float32)
            finite = bool(np.isfinite(result).all())
        elif isinstance(values, list) and [np.shape(v) for v in values] == [(n,) for n in lengths]:
            result = [np.asarray(v, np.float32) * np.asarray(m, np.float32)
                      for v, m in zip(values, scored.masks, strict=True)]  # fmt: skip
            finite = all(np.isfinite(v).all() for v in result)
        else:
            what = (
                f"an array of shape {values.shape}" if isinstance(values, np.ndarray) else f"a {type(values).__name__}"
            )
            summary = f"{import_path} returned {what} for {len(lengths)} samples"
            hint = "return an array of one number a sample, or a list with one array for each sample's tokens"
            raise RunFailed("advantages", summary, hint)
        if not finite:
            raise RunFailed("advantages", f"{import_path} returned a number that is not finite")
        return result

    return estimate
