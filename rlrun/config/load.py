"""Words of the command line and YAML files -> RunConfig, or every problem that they have.

Hydra's grammar reads the words, Hydra's groups compose the files (`compose.py`), OmegaConf resolves `${...}`, and
pydantic decides what is allowed. Nothing here stops at the first problem.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from rlrun.config.compose import Composition, Groups
from rlrun.config.keys import (
    all_keys,
    expected,
    find_key,
    open_sections,
    own_keys,
)
from rlrun.config.origin import COMMAND_LINE, Origins, show
from rlrun.config.partial import Partial
from rlrun.config.problems import schema_problem, unknown_key
from rlrun.config.resolve import resolve
from rlrun.config.schema import RunConfig
from rlrun.config.twin import OPTIONS, cpu_twin
from rlrun.config.twin import ORIGIN as TWIN_ORIGIN
from rlrun.errors import Problem, RlrunError, Where


@dataclass(frozen=True)
class Loaded:
    """A configuration as far as it could be read. `config` is a whole RunConfig when there are no problems."""

    config: RunConfig | Partial
    values: dict[str, Any]
    origins: Origins
    experiment: str | None
    problems: tuple[Problem, ...]
    twin: str | None = None
    """Name of the experiment of which this is the CPU twin."""


def load(words: Sequence[str], config_dir: str | None = None) -> Loaded:
    """Composes `+experiment=name`, `group=option` and `key=value` words. Raises nothing: problems are returned."""
    problems: list[Problem] = []
    overrides = _parse(words, problems)
    problems += [_sweep_problem(o) for o in overrides if o.is_sweep_override()]
    overrides = [o for o in overrides if not o.is_sweep_override()]
    twins, overrides = _twins(overrides, problems)
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
    loaded = _validated(composition.tree, composition.origins, experiment, problems, composition.incomplete, groups)
    return _twin_of(loaded, composition, twins[-1], groups) if twins else loaded


def _twins(overrides: list[Override], problems: list[Problem]) -> tuple[list[Override], list[Override]]:
    """The words that ask for a twin, and the others. `twin` reads like a group, and has one option."""
    asked = [o for o in overrides if o.key_or_group == "twin" and o.package is None]
    others = [o for o in overrides if o not in asked]
    problems += _chosen_twice(asked)
    for word in asked:
        if not word.is_delete() and word.value() not in (*OPTIONS, None):
            where = (Where(COMMAND_LINE, word.input_line or ""),)
            summary = f"twin has no option `{show(word.value())}`"
            problems.append(Problem("unknown-option", summary, where, hint=f"write +twin={', '.join(OPTIONS)}"))
    return [o for o in asked if not o.is_delete() and o.value() in OPTIONS], others


def _twin_of(loaded: Loaded, composition: Composition, asked: Override, groups: Groups) -> Loaded:
    """The configuration scaled to a CPU; as it was when something in it is wrong already."""
    config, tree, origins = loaded.config, composition.tree, composition.origins
    if loaded.problems or not isinstance(config, RunConfig):
        return loaded
    if config.placement.device == "cpu":
        summary = f"{config.name} runs on a CPU as it is"
        word = asked.input_line or ""
        where = (Where(COMMAND_LINE, word), origins.where("placement.device", "cpu"))
        return replace(loaded, problems=(Problem("twin-of-cpu", summary, where, hint=f"leave out {word}"),))
    task = "quickstart_sft" if config.algo.loss == "sft" else "quickstart"
    tiny, data = (_file(groups, name) for name in (f"model/tiny_{config.model.family}", f"data/{task}"))
    changes = cpu_twin(config, tiny, data, "rlrun.agents.rewards:position_match", origins.on_command_line)
    for key, value in changes.items():
        was = show(_value_at(loaded.values, key))
        OmegaConf.update(tree, key, value, merge=False, force_add=True)
        origins.add_value(key, value, Where(f"{TWIN_ORIGIN}, was {was}", ""))
    scaled = _validated(tree, origins, loaded.experiment, [], False, groups)
    return replace(scaled, twin=config.name)


def _file(groups: Groups, name: str) -> dict[str, Any]:
    """A file of conf/ by itself, resolved."""
    found = groups.repository.load_config(name)
    assert found is not None, name
    values = OmegaConf.to_container(found.config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _value_at(values: dict[str, Any], key: str) -> Any:
    """A value as it was written, or the schema's default."""
    node: Any = values
    for name in key.split("."):
        if not isinstance(node, dict) or name not in node:
            return all_keys()[key].default
        node = node[name]
    return node


def reload(
    values: dict[str, Any], origin: str, words: Sequence[str], experiment: str | None, twin: str | None = None
) -> Loaded:
    """A configuration resolved earlier (and read from `origin`) with new `key=value` words; choices are refused."""
    problems: list[Problem] = []
    overrides = _parse(words, problems)
    problems += [_sweep_problem(o) for o in overrides if o.is_sweep_override()]
    groups = Groups()
    choices = [o for o in overrides if _is_choice(o, groups) or o.key_or_group == "twin"]
    problems += [_choice_problem(o) for o in choices]
    origins = Origins()
    for key, value in values.items():
        origins.add_value(key, value, Where(origin, ""))
    composition = Composition(OmegaConf.create(values), origins, {}, [], False)
    rest = [o for o in overrides if o not in choices and not o.is_sweep_override()]
    _apply(rest, composition, groups, problems)
    return replace(_validated(composition.tree, origins, experiment, problems, False, groups), twin=twin)


def expand_sweep(words: Sequence[str]) -> list[list[str]]:
    """Every point of `key=a,b`, `key=range(1,4)` and `key=choice(a,b)` words, the last word varying fastest.

    Raises RlrunError for words that cannot be read and for sweeps without a list of values.
    """
    problems: list[Problem] = []
    overrides = _parse(words, problems)
    groups = Groups()
    axes: list[list[str]] = []
    for override in overrides:
        override = replace(override, config_loader=groups.loader)
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
    overrides: list[Override] = []
    for word in words:
        read = _parse_word(word)
        if isinstance(read, Problem):
            problems.append(read)
        else:
            overrides += read
    return overrides


@functools.lru_cache(maxsize=1024)
def _parse_word(word: str) -> tuple[Override, ...] | Problem:
    """Nobody changes an Override, so that all loads of a process can share it."""
    try:
        return tuple(_parser().parse_overrides([word]))
    except (HydraException, OmegaConfBaseException) as e:
        where = (Where(COMMAND_LINE, word),)
        hint = "write key=value, and quote a value with special characters: key='\"a, b\"'"
        return Problem("bad-override", f"cannot read `{word}`: {_reason(str(e))}", where, hint=hint)


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


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
            problems.append(unknown_key(key, (Where(COMMAND_LINE, word),), groups))
            continue
        try:
            if override.is_delete():
                _delete(composition.tree, key)
            else:
                OmegaConf.update(composition.tree, key, override.value(), merge=True, force_add=True)
            composition.origins.add_value(key, override.value(), Where(COMMAND_LINE, word))
        except (OmegaConfBaseException, ValueError) as e:  # OmegaConf's ValueError: a key of a list that is no number
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
            problems.append(schema_problem(error, ".".join(location), origins, groups))
        config = Partial(RunConfig, values, frozenset(bad), incomplete)
    problems += _arguments(values, bad, origins)
    if isinstance(config, RunConfig) and (bad or incomplete):
        config = Partial(RunConfig, values, frozenset(bad), incomplete)
    return Loaded(config, values, origins, experiment, tuple(problems))


def _arguments(values: dict[str, Any], bad: set[tuple[str, ...]], origins: Origins) -> list[Problem]:
    """What is wrong with the arguments of engines; those that cannot be used are added to `bad`."""
    problems: list[Problem] = []
    for section, engine in open_sections().items():
        path, node = tuple(section.split(".")), values
        for name in path:
            node = node.get(name, {}) if isinstance(node, dict) else {}
        own = own_keys(section)
        for name, value in node.items() if isinstance(node, dict) else ():
            if name not in own:
                from rlrun.config.arguments.check import check_argument

                problem = check_argument(engine, name, value, section, origins, own=own)
                if problem is not None:
                    problems.append(problem)
                    bad.add((*path, name))
    return problems
