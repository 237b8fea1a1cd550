"""Words of the command line and YAML files -> RunConfig, or every problem that they have.

Hydra's grammar reads the words, Hydra's groups compose the files (`compose.py`), OmegaConf resolves `${...}`, and
pydantic decides what is allowed. Nothing here stops at the first problem.
"""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlrun.config.compose import Composition, Groups
from rlrun.config.keys import all_keys, expected, find_key, item_keys, nearest_key
from rlrun.config.origin import COMMAND_LINE, Origins, show
from rlrun.config.partial import Partial
from rlrun.config.resolve import resolve
from rlrun.config.schema import RunConfig
from rlrun.errors import Problem, RlrunError, Where


@dataclass(frozen=True)
class Loaded:
    """A configuration as far as it could be read. `config` is a whole RunConfig when there are no problems."""

    config: RunConfig | Partial
    values: dict[str, Any]
    origins: Origins
    experiment: str | None
    problems: tuple[Problem, ...]


def load(words: Sequence[str], config_dir: str | None = None) -> Loaded:
    """Composes `+experiment=name`, `group=option` and `key=value` words. Raises nothing: problems are returned."""
    problems: list[Problem] = []
    overrides = _parse(words, problems)
    problems += [_sweep_problem(o) for o in overrides if o.is_sweep_override()]
    overrides = [o for o in overrides if not o.is_sweep_override()]
    if config_dir is not None and not os.path.isdir(config_dir):
        summary = f"there is no folder {config_dir}"
        where = (Where(COMMAND_LINE, f"--config-dir {config_dir}"),)
        problems.append(Problem("config-dir-not-found", summary, where, hint="give --config-dir an existing folder"))
        config_dir = None
    groups = Groups(config_dir)
    chosen = [o for o in overrides if _is_choice(o, groups)]
    problems += _chosen_twice(chosen)
    composition = groups.compose(list({o.key_or_group: o for o in chosen}.values()))
    problems += composition.problems
    _apply([o for o in overrides if o not in chosen], composition, groups, problems)
    experiment = composition.choices.get("experiment")
    return _validated(composition.tree, composition.origins, experiment, problems, composition.incomplete, groups)


def reload(values: dict[str, Any], origin: str, words: Sequence[str], experiment: str | None) -> Loaded:
    """A configuration resolved earlier (and read from `origin`) with new `key=value` words; choices are refused."""
    problems: list[Problem] = []
    overrides = _parse(words, problems)
    problems += [_sweep_problem(o) for o in overrides if o.is_sweep_override()]
    groups = Groups()
    choices = [o for o in overrides if _is_choice(o, groups)]
    problems += [_choice_problem(o) for o in choices]
    origins = Origins()
    for key, value in values.items():
        origins.add_value(key, value, Where(origin, ""))
    composition = Composition(OmegaConf.create(values), origins, {}, [], False)
    rest = [o for o in overrides if o not in choices and not o.is_sweep_override()]
    _apply(rest, composition, groups, problems)
    return _validated(composition.tree, origins, experiment, problems, False, groups)


def expand_sweep(words: Sequence[str]) -> list[list[str]]:
    """Every point of `key=a,b`, `key=range(1,4)` and `key=choice(a,b)` words, the last word varying fastest.

    Raises RlrunError for words that cannot be read and for sweeps without a list of values.
    """
    problems: list[Problem] = []
    overrides = _parse(words, problems)
    groups = Groups()
    axes: list[list[str]] = []
    for override in overrides:
        override.config_loader = groups.loader
        if not override.is_sweep_override():
            axes.append([override.input_line or ""])
        elif override.is_discrete_sweep():
            axes.append([f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()])
        else:
            problems.append(_sweep_problem(override))
    if problems:
        raise RlrunError(problems)
    return [list(point) for point in itertools.product(*axes)]


def _parse(words: Iterable[str], problems: list[Problem]) -> list[Override]:
    parser = OverridesParser.create()
    overrides = []
    for word in words:
        try:
            overrides += parser.parse_overrides([word])
        except (HydraException, OmegaConfBaseException) as e:
            reason = _reason(str(e))
            where = (Where(COMMAND_LINE, word),)
            hint = "write key=value, and quote a value with special characters: key='\"a, b\"'"
            problems.append(Problem("bad-override", f"cannot read `{word}`: {reason}", where, hint=hint))
    return overrides


def _reason(message: str) -> str:
    """What Hydra's parser says, without its caret line and the address of its manual."""
    if message.startswith("LexerNoViableAltException"):
        return "a quote or bracket is not closed, or a character is not allowed there"
    return message.split("\nSee https")[0].splitlines()[-1].strip()


def _sweep_problem(override: Override) -> Problem:
    word = override.input_line or ""
    if override.is_discrete_sweep():
        summary = f"`{word}` gives several values, and this is one run"
        hint = f"add -m to run each, or write {override.key_or_group}=[...] for a list"
    else:
        summary = f"`{word}` is a range without a list of values"
        hint = f"list the values: {override.key_or_group}=1,2,3"
    return Problem("sweep-not-possible", summary, (Where(COMMAND_LINE, word),), hint=hint)


def _choice_problem(override: Override) -> Problem:
    word = override.input_line or ""
    summary = f"`{word}` chooses a file, and a run that exists keeps its files"
    return Problem("choice-not-possible", summary, (Where(COMMAND_LINE, word),), hint="set single keys: key=value")


def _chosen_twice(choices: Sequence[Override]) -> list[Problem]:
    """Hydra would take the last one without a word."""
    words: dict[str, list[str]] = {}
    for choice in choices:
        words.setdefault(choice.key_or_group, []).append(choice.input_line or "")
    return [
        Problem(
            "chosen-twice",
            f"{group} is chosen {len(given)} times",
            tuple(Where(COMMAND_LINE, word) for word in given),
            hint=f"keep one of {', '.join(given)}; -m with {group}=a,b runs each",
        )
        for group, given in words.items()
        if len(given) > 1
    ]


def _is_choice(override: Override, groups: Groups) -> bool:
    """Whether the word chooses an option of a group, rather than setting a key of that name."""
    value = override.value()
    names = value if isinstance(value, list) else [value]
    is_name = value is None or all(isinstance(name, str) for name in names)
    return groups.exists(override.key_or_group) and is_name


def _apply(overrides: Iterable[Override], composition: Composition, groups: Groups, problems: list[Problem]) -> None:
    """Sets `key=value` (`+key` and `++key` mean the same) in the tree; keys the schema lacks are problems."""
    for override in overrides:
        key, word = override.key_or_group, override.input_line or ""
        if find_key(key) is None or override.package is not None:
            problems.append(_unknown_key(key, (Where(COMMAND_LINE, word),), groups))
            continue
        try:
            if override.is_delete():
                _delete(composition.tree, key)
            else:
                OmegaConf.update(composition.tree, key, override.value(), merge=True, force_add=True)
            composition.origins.add_value(key, override.value(), Where(COMMAND_LINE, word))
        except OmegaConfBaseException as e:
            summary = f"cannot set `{word}`: {str(e).splitlines()[0]}"
            problems.append(
                Problem("bad-override", summary, (Where(COMMAND_LINE, word),), hint=f"set {key} to {expected(key)}")
            )


def _delete(tree: DictConfig, key: str) -> None:
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(tree, parent) if parent else tree
    if isinstance(node, DictConfig) and name in node:
        with open_dict(node):
            del node[name]


def _validated(
    tree: DictConfig,
    origins: Origins,
    experiment: str | None,
    problems: list[Problem],
    incomplete: bool,
    groups: Groups,
) -> Loaded:
    resolution = resolve(tree, origins)
    values, bad = resolution.values, resolution.bad
    problems += resolution.problems
    if incomplete:  # an option that could not be read left an empty group: as good as absent
        values = {name: value for name, value in values.items() if value != {}}
    config: RunConfig | Partial
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as e:
        for error in e.errors(include_url=False):
            location = tuple(str(part) for part in error["loc"])
            if location in bad:
                continue
            if error["type"] == "missing" and incomplete:
                bad.add(location)
                continue
            if error["type"] != "extra_forbidden":
                bad.add(location)
            problems.append(_schema_problem(error, ".".join(location), origins, groups))
        config = Partial(RunConfig, values, frozenset(bad), incomplete)
    if isinstance(config, RunConfig) and (bad or incomplete):
        config = Partial(RunConfig, values, frozenset(bad), incomplete)
    return Loaded(config, values, origins, experiment, tuple(problems))


def _schema_problem(error: ErrorDetails, key: str, origins: Origins, groups: Groups) -> Problem:
    """One finding of pydantic in our words."""
    if error["type"] == "extra_forbidden":
        return _unknown_key(key, (origins.where(key, error["input"]),), groups)
    if error["type"] == "missing":
        return _missing(key, origins, groups)
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
        first = next(k for k in all_keys() if k.startswith(f"{name}."))
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


def _unknown_key(key: str, where: tuple[Where, ...], groups: Groups) -> Problem:
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


def _missing(key: str, origins: Origins, groups: Groups) -> Problem:
    options = groups.options(key)
    if options:
        hint = f"choose one: {', '.join(f'{key}={option}' for option in options)}; or start from +experiment=NAME"
    else:
        hint = f"set {key} to {expected(key)}"
        if "." not in key:
            hint += ", or start from +experiment=NAME"
    where = () if item_keys(key) is None else (origins.where(key, "???"),)
    return Problem("missing-value", f"{key} has no value", where, hint=hint)
