"""The arguments that an engine's pinned version takes, as recorded by `rlrun.config.tables.record`.

Read from JSON when a configuration has such an argument, not before: most have none.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config.tables.record import FILES, HERE

WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "mapping": "a mapping of names to values",
    "list[int]": "a list of whole numbers",
    "list[float]": "a list of numbers",
    "list[str]": "a list of texts",
    "list[mapping]": "a list of mappings",
    "dtype": "a text",
    "enum": "a text",
    "null": "null",
    "object": "an object of Python",
}


@dataclass(frozen=True)
class Argument:
    name: str
    types: tuple[str, ...]
    default: Any
    choices: tuple[Any, ...]
    """The values that are allowed, beside null where that is a type; none when any of its type is."""
    how: str
    """On SGLang's command line: a flag, a switch (--x or --no-x), one value, words, or JSON."""
    flag: str
    """Its name on that command line."""
    objects: tuple[str, ...]
    """Megatron's config objects that have it: transformer, mla, optimizer, ddp. All of them get the same value."""

    @property
    def settable(self) -> bool:
        """Whether YAML can write a value of it."""
        return self.types != ("object",)

    @property
    def expected(self) -> str:
        """What its value has to be, in words."""
        if not self.choices:
            return " or ".join(WORDS[kind] for kind in self.types)
        words = [{True: "true", False: "false"}.get(c, str(c)) if isinstance(c, bool) else str(c) for c in self.choices]
        many = "a list of " if self.types[0].startswith("list") else ""
        null = " or null" if "null" in self.types else ""
        return (f"{many}one of {', '.join(words)}" if len(words) > 1 else f"only {words[0]}") + null

    def fits(self, value: Any) -> bool:
        """Whether a value has one of its types; which of them are allowed is another question."""
        return any(_is(value, kind) for kind in self.types)

    def allows(self, value: Any) -> bool:
        """Whether a value of the right type is among the choices."""
        if not self.choices or value is None or value == self.default:
            return True
        return all(item in self.choices for item in (value if isinstance(value, list) else [value]))


@dataclass(frozen=True)
class Table:
    engine: str
    """As people call it: SGLang."""
    version: str
    arguments: Mapping[str, Argument]
    spellings: Mapping[str, str]
    """Other names that its command line takes, such as older ones."""


@functools.cache
def table(engine: str) -> Table:
    """`sglang` or `megatron`."""
    recorded = json.loads((Path(HERE) / FILES[engine]).read_text(encoding="utf-8"))
    arguments = {
        name: Argument(
            name=name,
            types=tuple(row["type"].split("|")),
            default=row["default"],
            choices=tuple(row.get("choices", ())),
            how=row.get("how", "value"),
            flag=row.get("flag", name.replace("_", "-")),
            objects=tuple(row.get("of", ())),
        )
        for name, row in recorded["arguments"].items()
    }
    return Table(recorded["engine"], recorded["version"], arguments, recorded["spellings"])


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("list["):
        return isinstance(value, list) and all(_is(item, kind[5:-1]) for item in value)
    if isinstance(value, bool):
        return kind == "bool"
    types: dict[str, Any] = {"int": int, "float": int | float, "mapping": dict, "null": type(None), "bool": bool}
    return isinstance(value, types.get(kind, str)) and kind != "object" and value not in (float("inf"), float("-inf"))
