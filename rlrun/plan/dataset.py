"""What the plan has to know of a JSONL file: that every row can be used, how many there are, and its hash."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlrun.config.recall import recall, remember, stamp

MOST_SHOWN = 5
ROLES = ("system", "user", "assistant")


class Fields(NamedTuple):
    """The fields that are read of a row."""

    prompt: str
    label: str | None
    response: str | None


@dataclass(frozen=True)
class BadRow:
    line: int
    """From 1."""
    reason: str


@dataclass(frozen=True)
class Scan:
    """`error` is set when the file could not be read at all; `bad` holds the first few unusable rows."""

    num_rows: int
    sha256: str
    bad: tuple[BadRow, ...]
    num_bad: int
    foreign: tuple[BadRow, ...]
    """The first few rows with characters that the alphabet lacks."""
    error: str | None = None


def scan(
    path: str, prompt_key: str, label_key: str | None, alphabet: str | None = None, response_key: str | None = None
) -> Scan:
    """Reads a JSONL file; blank lines are not rows. With `alphabet`, looks at the characters too. Never raises. The
    result is kept as long as the file stays as it is."""
    fields = Fields(prompt_key, label_key, response_key)
    key, files = ("scan", path, fields, alphabet), {path: stamp(path)}
    known = recall(key)
    if known is None:
        known = _scan(path, fields, alphabet)
        if known.error is None:
            remember(key, known, files)
    return known


def _scan(path: str, fields: Fields, alphabet: str | None) -> Scan:
    digest = hashlib.sha256()
    bad: list[BadRow] = []
    foreign: list[BadRow] = []
    rows = num_bad = 0
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                digest.update(raw)
                if not raw.strip():
                    continue
                rows += 1
                row, reason = _read_row(raw, fields)
                if reason is not None:
                    num_bad += 1
                    if len(bad) < MOST_SHOWN:
                        bad.append(BadRow(number, reason))
                elif alphabet is not None and len(foreign) < MOST_SHOWN:
                    response = row[fields.response] if fields.response is not None else ""
                    unknown = foreign_characters(row[fields.prompt], alphabet, response)
                    if unknown:
                        foreign.append(BadRow(number, unknown))
    except OSError as e:
        return Scan(0, "", (), 0, (), error=(e.strerror or str(e)).lower())
    return Scan(rows, digest.hexdigest(), tuple(bad), num_bad, tuple(foreign))


def _read_row(raw: bytes, fields: Fields) -> tuple[Any, str | None]:
    """A row, and why it cannot be used (None when it can)."""
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError:
        return None, "is not UTF-8"
    except json.JSONDecodeError as e:
        return None, f"is not JSON: {e.msg} at column {e.colno}"
    if not isinstance(row, dict):
        return None, f"is a {type(row).__name__}, not an object"
    for key in fields:
        if key is not None and key not in row:
            return None, f"has no field `{key}`, only {', '.join(row) or 'an empty object'}"
    fault = prompt_fault(row[fields.prompt])
    if fault:
        return row, f"has a `{fields.prompt}` that {fault}"
    if fields.response is not None and not (isinstance(row[fields.response], str) and row[fields.response]):
        return row, f"has a `{fields.response}` that is {'empty' if row[fields.response] == '' else 'not a text'}"
    return row, None


def foreign_characters(prompt: Any, alphabet: str, response: str = "") -> str:
    """The characters of a prompt and its response that the alphabet lacks, in order. Special tokens are spelled out in
    neither."""
    texts = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
    characters = set(re.sub(r"<\|(endoftext|im_start|im_end)\|>", "", "".join([*texts, response])))
    return "".join(sorted(characters - set(alphabet)))


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
