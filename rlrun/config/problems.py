"""What is wrong with a key, in words: findings of pydantic, keys that the schema lacks, values that nobody gave."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic_core import ErrorDetails

from rlrun.config.compose import Groups
from rlrun.config.keys import all_keys, expected, find_key, item_keys, nearest_key, open_sections, other_name, own_keys
from rlrun.config.origin import Origins, show
from rlrun.errors import Problem, Where


def schema_problem(error: ErrorDetails, key: str, origins: Origins, groups: Groups) -> Problem:
    """One finding of pydantic in our words."""
    if error["type"] == "extra_forbidden":
        return unknown_key(key, (origins.where(key, error["input"]),), groups)
    if error["type"] == "missing":
        return missing(key, origins, groups)
    value = error["input"]
    where = (origins.where(key, value),)
    parts = key.split(".")
    entry = item_keys(key)
    if entry is not None and find_key(key) is not None:
        name = key
    else:
        name = next(p for n in range(len(parts), 0, -1) if (p := ".".join(parts[:n])) in all_keys())  # not a.stop.0
    known = find_key(name)
    assert known is not None
    bounds = ("greater_than", "less_than", "literal_error", "string_pattern", "finite_number", "too_short")
    code = "not-allowed" if error["type"].startswith(bounds) else "wrong-type"
    got = f"{show(value)}" if code == "not-allowed" else f"{_kind(value)} {show(value)}".strip()
    hint = f"set {name} to {expected(name)}"
    if known.section is not None:
        first = next((k for k in all_keys() if k.startswith(f"{name}.")), f"{name}.NAME")
        hint = f"set the keys below it, e.g. {first}; `rlrun explain {name}` lists them"
    elif not known.required:
        hint += f"; the default is {show(known.default)}"
    if isinstance(value, int | float) and known.expected.startswith("a text"):
        hint = f"quote it: {name}='\"{value}\"'"
    holds = "is" if name == key else "holds"
    return Problem(code, f"{name} {holds} {got}, it has to be {known.expected}", where, hint=hint)


def _kind(value: Any) -> str:
    for types, word in (
        (bool, "the truth value"),
        (int | float, "the number"),
        (str, "the text"),
        (dict, "the mapping"),
        (list, "the list"),
    ):
        if isinstance(value, types):
            return word
    return ""


def unknown_key(key: str, where: tuple[Where, ...], groups: Groups) -> Problem:
    entry = item_keys(key)
    if entry is not None:
        inside, names = entry
        name = key.removeprefix(f"{inside}.")
        close = difflib.get_close_matches(name.split(".")[0], names, n=1)
        hint = f"did you mean `{inside}.{close[0]}`?" if close else f"the keys there are {', '.join(names)}"
        return Problem("unknown-key", f"{inside} has no key `{name}`", where, hint=hint)
    parent, _, name = key.rpartition(".")
    while parent and parent not in all_keys():
        parent, _, name = parent.rpartition(".")
    summary = f"{parent} has no key `{name}`" if parent else f"there is no key `{name}`"
    if parent in open_sections():
        return Problem("unknown-key", summary, where, _argument_hint(key, parent))
    meant = nearest_key(key)
    if key == "experiment" and "/" in where[0].origin:
        hint = "begin the file with the line `# @package _global_`, so that its keys are those of a run"
    elif meant is not None:
        hint = f"did you mean `{meant}`?"
    elif parent and all_keys()[parent].section is None:
        hint = f"{parent} has no keys of its own: set it to {expected(parent)}"
    else:
        siblings = [k.path for k in all_keys().values() if k.path.rpartition(".")[0] == parent]
        hint = f"the keys there are {', '.join(k.rpartition('.')[2] for k in siblings)}"
    return Problem("unknown-key", summary, where, hint=hint)


def _argument_hint(key: str, section: str) -> str:
    """What was meant by a key that neither an open section nor its engine has."""
    from rlrun.config.arguments.check import unknown_hint
    from rlrun.config.arguments.table import table

    name, _, below = key[len(section) + 1 :].partition(".")
    argument = table(open_sections()[section]).arguments.get(name)
    if argument is not None and below:
        return f"{section}.{name} has no keys of its own: set it to {argument.expected}"
    if name in own_keys(section):
        return f"{section}.{name} has no keys of its own: set it to {expected(f'{section}.{name}')}"
    other = other_name(name)
    return f"set {other} instead" if other else unknown_hint(open_sections()[section], name, section, own_keys(section))


def missing(key: str, origins: Origins, groups: Groups) -> Problem:
    options = groups.options(key)
    if options:
        hint = f"choose one: {', '.join(f'{key}={option}' for option in options)}; or start from +experiment=NAME"
    else:
        hint = f"set {key} to {expected(key)}"
        if "." not in key:
            hint += ", or start from +experiment=NAME"
    where = () if item_keys(key) is None else (origins.where(key, "???"),)
    return Problem("missing-value", f"{key} has no value", where, hint=hint)
