"""Datasets of prompts: a JSONL file, its rows tokenized once, and a cursor over them that a run can resume.

Standard library and numpy only; the tokenizer is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.data.types import Prompt
from rlrun.errors import Problem, RlrunError, RunFailed, Where

MOST_NAMED = 10


@dataclass(frozen=True)
class Row:
    """One row as it was written: a text or a list of {role, content} messages, its label, and `file:line`."""

    prompt: str | list[dict[str, str]]
    label: Any
    origin: str


def load_jsonl(path: str, prompt_key: str, label_key: str | None) -> list[Row]:
    """All rows of a JSONL file, in order; blank lines are not rows.

    Raises RlrunError: `file-not-found`, or `malformed-jsonl` with every line that cannot be used (the first ten by
    name). Nothing is skipped: a dataset that is not what its author thinks it is must not train.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        summary = f"cannot read {path}: {(error.strerror or str(error)).lower()}"
        raise RlrunError(Problem("file-not-found", summary, hint="correct the path")) from None
    rows, faults = [], []
    for number, raw in enumerate(lines, start=1):
        if raw.strip():
            row, fault = read_row(raw, prompt_key, label_key)
            if row is None:
                faults.append(Where(f"{path}:{number}", str(fault)))
            else:
                rows.append(Row(row[prompt_key], row[label_key] if label_key else None, f"{path}:{number}"))
    if faults:
        summary = f"{path}: {len(faults)} of {len(rows) + len(faults)} rows cannot be used"
        raise RlrunError(Problem("malformed-jsonl", summary, _first(faults), "correct these lines of the file"))
    return rows


def read_row(raw: bytes, prompt_key: str, label_key: str | None) -> tuple[dict[str, Any] | None, str | None]:
    """One line of a JSONL file: the object, or None and why it cannot be used, as in "is not UTF-8"."""
    try:
        row = json.loads(raw)
    except UnicodeDecodeError:
        return None, "is not UTF-8"
    except json.JSONDecodeError as error:
        return None, f"is not JSON: {error.msg} at column {error.colno}"
    if not isinstance(row, dict):
        return None, f"is a {type(row).__name__}, not an object"
    for key in (prompt_key, label_key):
        if key is not None and key not in row:
            return None, f"has no field `{key}`, only {', '.join(row) or 'an empty object'}"
    fault = prompt_fault(row[prompt_key])
    return (None, f"has a `{prompt_key}` that {fault}") if fault else (row, None)


ROLES = ("system", "user", "assistant")


def prompt_fault(prompt: Any) -> str | None:
    """Why a value is no prompt: it has to be a text, or a list of {role, content} messages."""
    if isinstance(prompt, str):
        return None if prompt else "is empty"
    if not isinstance(prompt, list) or not prompt:
        return "is neither a text nor a list of messages"
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return "has a message without a text as `content`"
        if message.get("role") not in ROLES:
            return f"has a message with the role {message.get('role')!r}, not one of {', '.join(ROLES)}"
    return None


def tokenize_prompts(
    rows: Sequence[Row], tokenizer: Any, system_prompt: str | None, max_prompt_tokens: int
) -> list[Prompt]:
    """Every row through the chat template, with the generation prompt added; `prompt_id` is the row's index.

    A text becomes one user turn, after `system_prompt` if there is one; a list of messages is taken as it is.
    Raises RlrunError `prompt-too-long` naming the rows above `max_prompt_tokens`: prompts are never cut or dropped.
    """
    prompts, too_long = [], []
    for i, row in enumerate(rows):
        messages = row.prompt if isinstance(row.prompt, list) else [{"role": "user", "content": row.prompt}]
        if system_prompt is not None and isinstance(row.prompt, str):
            messages = [{"role": "system", "content": system_prompt}, *messages]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        if len(ids) > max_prompt_tokens:
            too_long.append((len(ids), Where(row.origin, f"{len(ids)} tokens")))
        prompts.append(Prompt(i, tuple(messages), tuple(int(token) for token in ids), row.label))
    if too_long:
        longest = max(count for count, _ in too_long)
        summary = f"{len(too_long)} of {len(rows)} prompts are longer than {max_prompt_tokens} tokens, up to {longest}"
        hint = f"set rollout.max_prompt_tokens to {longest} or more, or take these rows out of the file"
        raise RlrunError(Problem("prompt-too-long", summary, _first([where for _, where in too_long]), hint))
    return prompts


def _first(places: Sequence[Where]) -> tuple[Where, ...]:
    left = len(places) - MOST_NAMED
    return (*places[:MOST_NAMED], *([Where("...", f"and {left} more")] if left > 0 else []))


class PromptSource:
    """An endless stream over the prompts of a dataset, epoch after epoch, that can be stopped and resumed.

    The order of an epoch depends on (seed, epoch) alone. A batch may cross from one epoch into the next, so no prompt
    is ever left out because a dataset does not divide evenly.
    """

    def __init__(self, prompts: Sequence[Prompt], shuffle: bool, seed: int):
        assert prompts, "a source without prompts"
        self._prompts = list(prompts)
        self._shuffle, self._seed = shuffle, seed
        self._epoch = self._position = 0
        self._order = self._order_of(0)

    def take(self, n: int) -> list[Prompt]:
        """The next n prompts; with more than one epoch of them, or at the end of one, a prompt may appear twice."""
        taken: list[Prompt] = []
        while len(taken) < n:
            if self._position == len(self._prompts):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._order_of(self._epoch)
            chosen = self._order[self._position : self._position + n - len(taken)]
            self._position += len(chosen)
            taken += [self._prompts[i] for i in chosen]
        return taken

    def state_dict(self) -> dict[str, int]:
        """The cursor, as JSON: epoch, position in it, and the number of prompts to recognise the dataset by."""
        return {"epoch": self._epoch, "position": self._position, "num_prompts": len(self._prompts)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where `state` was taken. Raises RunFailed when the dataset has another number of prompts now."""
        if state["num_prompts"] != len(self._prompts):
            summary = f"the dataset has {len(self._prompts)} prompts, and had {state['num_prompts']} at the checkpoint"
            raise RunFailed("data", summary, "restore the data file, or start a new run")
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._order_of(self._epoch)

    def _order_of(self, epoch: int) -> list[int]:
        n = len(self._prompts)
        return np.random.default_rng([self._seed, epoch]).permutation(n).tolist() if self._shuffle else list(range(n))
