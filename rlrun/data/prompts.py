"""Prompts: read, tokenized once with the model's own chat template, and drawn in an order that a resume can repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.data.types import Prompt
from rlrun.errors import Problem, RlrunError, Where
from rlrun.plan.dataset import MOST_SHOWN, scan


@dataclass(frozen=True)
class Row:
    """One line of a data set, from 1. `prompt` is a text or a list of {role, content} messages."""

    line: int
    prompt: str | list[dict[str, str]]
    label: Any
    response: str | None = None


def load_rows(path: str, prompt_key: str, label_key: str | None, response_key: str | None = None) -> list[Row]:
    """All rows of a JSONL file, in order; blank lines are not rows.

    The plan has looked at every line, but perhaps not at this file as it is now: raises RlrunError `file-not-found`,
    or `malformed-jsonl` with the lines that cannot be used. None is skipped.
    """
    found = scan(path, prompt_key, label_key, response_key=response_key)
    if found.error is not None:
        raise RlrunError(Problem("file-not-found", f"cannot read {path}: {found.error}", hint="correct the path"))
    if found.bad:
        where = _places([Where(f"{path}:{row.line}", row.reason) for row in found.bad], found.num_bad)
        summary = f"{path}: {found.num_bad} of {found.num_rows} rows cannot be used"
        raise RlrunError(Problem("malformed-jsonl", summary, where, hint="correct these lines of the file"))
    rows = []
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                row = json.loads(raw)
                label, response = (row[key] if key is not None else None for key in (label_key, response_key))
                rows.append(Row(number, row[prompt_key], label, response))
    return rows


def tokenize_prompts(
    rows: Sequence[Row], tokenizer: Any, system_prompt: str | None, max_prompt_tokens: int, path: str
) -> list[Prompt]:
    """Token ids of each row under the chat template, ready for generation. `prompt_id` is the row's index.

    A text becomes one user turn, after `system_prompt` if there is one; a list of messages is taken as it is.
    Raises RlrunError `prompt-too-long` naming the rows: prompts are never cut or left out.
    """
    prompts: list[Prompt] = []
    too_long: list[Where] = []
    for index, row in enumerate(rows):
        messages = [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt
        if system_prompt is not None and isinstance(row.prompt, str):
            messages = [{"role": "system", "content": system_prompt}, *messages]
        # As text first: some tokenizers return a mapping, some a list, when asked for ids directly.
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > max_prompt_tokens:
            too_long.append(Where(f"{path}:{row.line}", f"{len(ids)} tokens"))
        prompts.append(Prompt(index, tuple(messages), tuple(ids), row.label))
    if too_long:
        longest = max(len(prompt.token_ids) for prompt in prompts)
        summary = f"{len(too_long)} of {len(rows)} prompts have more than {max_prompt_tokens} tokens, up to {longest}"
        hint = f"set rollout.max_prompt_tokens to {longest}, or take these rows out of the file"
        where = _places(too_long[:MOST_SHOWN], len(too_long))
        raise RlrunError(Problem("prompt-too-long", summary, where, hint))
    return prompts


def tokenize_responses(
    rows: Sequence[Row], tokenizer: Any, max_response_tokens: int, path: str
) -> list[tuple[int, ...]]:
    """Token ids of each row's response and the end-of-sequence token: what an engine would have had to sample after the
    prompt's ids. Apart from the prompt, whose last token would otherwise be another one than in generation.

    Raises RlrunError `response-too-long` naming the rows: responses are never cut or left out.
    """
    end = tokenizer.eos_token_id
    if end is None:
        hint = "set eos_token in the model's tokenizer_config.json"
        raise RlrunError(Problem("no-end-token", "the tokenizer has no end-of-sequence token", hint=hint))
    responses = [(*tokenizer.encode(row.response, add_special_tokens=False), end) for row in rows]
    too_long = [
        Where(f"{path}:{row.line}", f"{len(ids)} tokens")
        for row, ids in zip(rows, responses, strict=True)
        if len(ids) > max_response_tokens
    ]
    if too_long:
        longest = max(map(len, responses))
        summary = (
            f"{len(too_long)} of {len(rows)} responses have more than {max_response_tokens} tokens with their end, "
            f"up to {longest}"
        )
        hint = f"set rollout.max_response_tokens to {longest}, or take these rows out of the file"
        raise RlrunError(Problem("response-too-long", summary, _places(too_long[:MOST_SHOWN], len(too_long)), hint))
    return responses


def _places(shown: Sequence[Where], total: int) -> tuple[Where, ...]:
    return (*shown, Where("...", f"and {total - len(shown)} more")) if total > len(shown) else tuple(shown)


class PromptSource:
    """Draws prompts epoch after epoch, without end. With `shuffle`, epoch e is ordered by a generator seeded with
    (seed, e), so the order depends on nothing else. A draw may cross epochs: no prompt is left out because the data set
    does not divide evenly."""

    def __init__(self, prompts: Sequence[Prompt], shuffle: bool, seed: int):
        assert prompts, "a source without prompts"
        self._prompts, self._shuffle, self._seed = prompts, shuffle, seed
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    def _order_of(self, epoch: int) -> np.ndarray:
        n = len(self._prompts)
        return np.random.default_rng([self._seed, epoch]).permutation(n) if self._shuffle else np.arange(n)

    def take(self, n: int) -> list[Prompt]:
        """The next n prompts; across the end of an epoch the same one may come twice."""
        taken: list[Prompt] = []
        while len(taken) < n:
            if self._position == len(self._prompts):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._order_of(self._epoch)
            chosen = self._order[self._position : self._position + n - len(taken)]
            taken += [self._prompts[i] for i in chosen]
            self._position += len(chosen)
        return taken

    @property
    def epochs(self) -> float:
        """Passes over the prompts so far."""
        return self._epoch + self._position / len(self._prompts)

    def state_dict(self) -> dict[str, int]:
        """Where it is, and over how many prompts. Plain JSON."""
        return {"epoch": self._epoch, "position": self._position, "num_prompts": len(self._prompts)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where `state` was taken. Raises RlrunError `data-changed` when the data set has another size now."""
        if state["num_prompts"] != len(self._prompts):
            raise RlrunError(
                Problem(
                    "data-changed",
                    f"the checkpoint was made with {state['num_prompts']} prompts, now there are {len(self._prompts)}",
                    hint="resume with the data set that the run began with, or start a new run",
                )
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self._order = self._order_of(self._epoch)
