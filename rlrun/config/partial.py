"""Reads a configuration some of whose keys are wrong, so that the rules of the plan can judge the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlrun.config.keys import item_of, section_of
from rlrun.config.sections.base import Section


class Unreadable(Exception):
    """A rule asked for a key that has a problem of its own. Whoever runs rules skips this one."""


class Partial:
    """Looks like the section, e.g. `partial.algo.group_size`; reading a bad key raises Unreadable.

    `bad` holds the paths that did not validate. Everything else did, and validation changes no value. When
    `incomplete`, a file that could not be read may have set more keys: reading one that is null because nobody has set
    it raises too.
    """

    def __init__(
        self,
        section: type[Section],
        values: Mapping[str, Any],
        bad: frozenset[tuple[str, ...]],
        incomplete: bool = False,
        path: tuple[str, ...] = (),
    ):
        self._section, self._values, self._bad, self._incomplete, self._path = section, values, bad, incomplete, path

    def __getattr__(self, name: str) -> Any:
        path = (*self._path, name)
        if path in self._bad:
            raise Unreadable(".".join(path))
        field = self._section.model_fields[name]
        if name not in self._values:
            if self._incomplete and field.default is None:
                raise Unreadable(".".join(path))
            return field.get_default()
        value, inner = self._values[name], section_of(field.annotation)
        if inner is not None and value is not None:
            return Partial(inner, value, self._bad, self._incomplete, path)
        if any(bad[: len(path)] == path for bad in self._bad):  # an item of a list or mapping
            raise Unreadable(".".join(path))
        if item_of(field.annotation) is not None:
            try:
                kind: Any = field.annotation
                return TypeAdapter(kind).validate_python(value)
            except ValidationError:  # an entry has a key too many
                raise Unreadable(".".join(path)) from None
        return value
