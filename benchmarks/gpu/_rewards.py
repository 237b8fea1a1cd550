"""Rewards of the runs that are measured here: named as `_rewards:function`, with this folder on PYTHONPATH."""

from __future__ import annotations

from typing import Any


def share_in_label(prompt: Any, response_text: str, label: Any) -> float:
    """Share of the response's characters that the label has, in [0, 1]."""
    return sum(character in str(label) for character in response_text) / max(len(response_text), 1)


def broken(prompt: Any, response_text: str, label: Any) -> float:
    """A reward with a mistake in it."""
    raise ValueError("this reward always fails")
