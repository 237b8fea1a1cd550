"""Prompts: read, tokenized once with the model's own chat template, and drawn in an order that a resume can repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.data.types import Prompt
from rlrun.errors import Problem, RlrunError

MOST_SHOWN = 5


@dataclass(frozen=True)
class Row:
    """One line of a data set; `messages` as {role, content}. `line` counts from 1."""

    line: int
    messages: tuple[dict[str, str], ...]
    label: Any


def load_rows(path: str, prompt_key: str, label_key: str | None) -> list[Row]:
    """The rows of a JSONL file that the plan has already looked at line by line. A string prompt is one user turn."""
    rows = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, start=1):
            if not line.strip():
                continue
            row = json.loads(line)
            prompt = row[prompt_key]
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            rows.append(Row(number, tuple(messages), row[label_key] if label_key is not None else None))
    return rows


def tokenize_prompts(
    rows: Sequence[Row], tokenizer: Any, system_prompt: str | None, max_prompt_tokens: int, path: str
) -> list[Prompt]:
    """Token ids of each row under the chat template, ready for generation. `prompt_id` is the row's index.

    `system_prompt` goes before a prompt that has no system message. Raises RlrunError `prompt-too-long` naming rows.
    """
    prompts: list[Prompt] = []
    too_long: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        messages = list(row.messages)
        if system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system_prompt})
        # As text first: some tokenizers return a mapping, some a list, when asked for ids directly.
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > max_prompt_tokens:
            too_long.append((row.line, len(ids)))
        prompts.append(Prompt(index, tuple(messages), tuple(ids), row.label))
    if too_long:
        shown = ", ".join(f"{path}:{line} ({n} tokens)" for line, n in too_long[:MOST_SHOWN])
        more = f" and {len(too_long) - MOST_SHOWN} more" if len(too_long) > MOST_SHOWN else ""
        raise RlrunError(
            Problem(
                "prompt-too-long",
                f"{len(too_long)} prompts have more than {max_prompt_tokens} tokens: {shown}{more}",
                hint=f"set rollout.max_prompt_tokens to {max(n for _, n in too_long)}, or drop these rows",
            )
        )
    return prompts


class PromptSource:
    """Draws prompts epoch after epoch, without end. With `shuffle`, epoch e is ordered by a generator seeded with
    (seed, e), so the order depends on nothing else. Draws may cross epochs."""

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
        """The next n prompts."""
        taken: list[Prompt] = []
        while len(taken) < n:
            if self._position == len(self._prompts):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._order_of(self._epoch)
            chosen = self._order[self._position : self._position + n - len(taken)]
            taken += [self._prompts[i] for i in chosen]
            self._position += len(chosen)
        return taken

    def state_dict(self) -> dict[str, int]:
        """Where it is, and over how many prompts."""
        return {"epoch": self._epoch, "position": self._position, "num_prompts": len(self._prompts)}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where `state` was taken. Raises RlrunError when the data set has another size now."""
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
