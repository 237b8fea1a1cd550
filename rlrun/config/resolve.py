"""An OmegaConf tree -> plain values: `${...}` replaced, what cannot be replaced or has no value (`???`) left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from rlrun.config.keys import all_keys, expected
from rlrun.config.origin import Origins
from rlrun.errors import Problem


@dataclass
class Resolution:
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    bad: set[tuple[str, ...]] = field(default_factory=set)
    """Paths that were left out."""


def resolve(tree: DictConfig, origins: Origins) -> Resolution:
    """Values of every key that the tree has. A `${...}` may also name a key that only the schema has a value for."""
    found = Resolution()
    written = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(written, dict)
    found.values = _resolve(written, tree, (), tree, origins, found)
    return found


def _resolve(
    written: dict[Any, Any],
    node: DictConfig,
    path: tuple[str, ...],
    tree: DictConfig,
    origins: Origins,
    found: Resolution,
) -> dict[str, Any]:
    """`written` are the values of `node` as plain ones; OmegaConf is asked for those that are not final only."""
    values: dict[str, Any] = {}
    for name, value in written.items():
        here = (*path, str(name))
        if isinstance(value, dict):
            inner = node._get_node(name)
            assert isinstance(inner, DictConfig)
            values[str(name)] = _resolve(value, inner, here, tree, origins, found)
            continue
        if not _is_open(value):
            values[str(name)] = value
            continue
        key = ".".join(here)
        if value == "???":
            found.bad.add(here)
            where = (origins.where(key, "???"),)
            found.problems.append(
                Problem("missing-value", f"{key} has no value", where, f"set {key} to {expected(key)}")
            )
            continue
        try:
            values[str(name)] = _value(node, name, tree, key)
        except Exception as e:  # a resolver is a function of the user's, and may raise anything
            found.bad.add(here)
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            hint = f"name an existing key in ${{...}}, or set {key} to {expected(key)}"
            where = (origins.where(key, value),)
            found.problems.append(Problem("bad-interpolation", f"{key} cannot be resolved: {reason}", where, hint))
    return values


def _is_open(value: Any) -> bool:
    """Whether a value, or an item of a list, refers to something else or has yet to be given."""
    if isinstance(value, str):
        return "${" in value or value == "???"
    if isinstance(value, list):
        return any(_is_open(item) for item in value)
    if isinstance(value, dict):
        return any(_is_open(item) for item in value.values())
    return False


def _value(node: DictConfig, name: Any, tree: DictConfig, key: str) -> Any:
    """One value; when it cannot be found in the tree, among the tree and the schema's defaults."""
    try:
        value = node[name]
    except Exception as first:
        scope = OmegaConf.merge(_defaults(), tree)
        try:
            value = OmegaConf.select(scope, key)
        except Exception:
            raise first from None  # its message names the key that was asked for
    if isinstance(value, DictConfig | ListConfig):
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return value


def _defaults() -> DictConfig:
    defaults = OmegaConf.create()
    for key in all_keys().values():
        if key.section is None and not key.required:
            OmegaConf.update(defaults, key.path, key.default)
    return defaults
