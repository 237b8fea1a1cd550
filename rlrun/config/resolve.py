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
    found.values = _resolve(tree, (), tree, origins, found)
    return found


def _resolve(
    node: DictConfig, path: tuple[str, ...], tree: DictConfig, origins: Origins, found: Resolution
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in node:
        here = (*path, str(name))
        key = ".".join(here)
        if OmegaConf.is_missing(node, name):
            found.bad.add(here)
            where = (origins.where(key, "???"),)
            found.problems.append(
                Problem("missing-value", f"{key} has no value", where, f"set {key} to {expected(key)}")
            )
            continue
        try:
            if isinstance(node._get_node(name), DictConfig) and not OmegaConf.is_interpolation(node, str(name)):
                values[str(name)] = None if node[name] is None else _resolve(node[name], here, tree, origins, found)
            else:
                values[str(name)] = _value(node, name, tree, key)
        except Exception as e:  # a resolver is a function of the user's, and may raise anything
            found.bad.add(here)
            written = OmegaConf.to_container(node, resolve=False)[name]  # type: ignore[index,call-overload]
            reason = (str(e).splitlines() or [type(e).__name__])[0]
            hint = f"name an existing key in ${{...}}, or set {key} to {expected(key)}"
            where = (origins.where(key, written),)
            found.problems.append(Problem("bad-interpolation", f"{key} cannot be resolved: {reason}", where, hint))
    return values


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
