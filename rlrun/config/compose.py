"""Hydra's part: groups and their options -> one OmegaConf tree, and the files it was made of.

Hydra composes the files only; values given on the command line are applied by `rlrun.config.load`, because Hydra
answers a mistyped key with the advice to write `+key`, which then creates it. Uses Hydra's loader below its `compose`
function, for two reasons: the list of files in their order (for `origin.py`), and going on after an unknown option
or a broken file, so that all problems come in one report. `tests/config` holds the result against Hydra's `compose`.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.structured_config_source import StructuredConfigSource
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.default_element import GroupDefault
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlrun.config.origin import COMMAND_LINE, Origins, display, line_of_choice
from rlrun.config.recall import Stamp, recall, remember, stamp
from rlrun.config.shipped import recipe_file, shipped
from rlrun.errors import Problem, Where

ROOT = "config"


@dataclass
class Composition:
    """What the files say. `incomplete` when one of them could not be used: absent keys are then no problem."""

    tree: DictConfig
    origins: Origins
    choices: dict[str, str | None]
    problems: list[Problem] = field(default_factory=list)
    incomplete: bool = False


class Groups:
    """The groups and options of `conf/` and of the user's own folder, whose files come first."""

    def __init__(self, config_dir: str | None = None):
        _prepare_hydra()
        own = [Path(config_dir).absolute()] if config_dir is not None else []
        self.folders: tuple[Path, ...] = (*own, shipped("conf"))

    @functools.cached_property
    def loader(self) -> ConfigLoaderImpl:
        search_path = ConfigSearchPathImpl()
        for folder in self.folders:
            search_path.append("rlrun", str(folder))
        search_path.append("schema", "structured://")
        return ConfigLoaderImpl(search_path)

    @functools.cached_property
    def repository(self) -> _TolerantRepository:
        return _TolerantRepository(self.loader.repository, self.folders)

    def exists(self, group: str) -> bool:
        return bool(group) and any((folder / group).is_dir() for folder in self.folders)

    def options(self, group: str) -> list[str]:
        return self.repository.get_group_options(group) if self.exists(group) else []

    def compose(self, choices: list[Override]) -> Composition:
        """Composes the root and the chosen options; goes on over unknown options and broken files. A composition
        without problems is kept for the next call with these choices, and forgotten when one of its files changes."""
        here = os.getcwd() if len(self.folders) > 1 else None  # origins in a user's folder are relative to it
        key = ("composition", here, self.folders, tuple(choice.input_line for choice in choices))
        known = recall(key)
        if known is not None:
            return known
        composition = self._compose(choices)
        if not composition.problems:
            remember(key, composition, self.repository.asked)
        return composition

    def _compose(self, choices: list[Override]) -> Composition:
        problems: list[Problem] = []
        choices = [self._normalised(choice) for choice in choices]
        empty = Composition(OmegaConf.create(), Origins(), {}, problems, incomplete=True)
        while True:  # each round but the last finds another absent option
            try:
                found = create_defaults_list(self.repository, ROOT, choices, prepend_hydra=False, skip_missing=False)
                tree = self.loader._compose_config_from_defaults_list(found.defaults, self.repository)
                break
            except MissingConfigException as e:
                absent = str(e.missing_cfg_file)
                assert absent not in self.repository.absent, absent
                problems.append(self._unknown_option(absent, choices))
                self.repository.absent.add(absent)
            except (HydraException, OmegaConfBaseException, ValueError) as e:
                problems.append(_not_composable(e))
                problems += self.repository.broken.values()
                return empty
        problems += self.repository.broken.values()
        origins = Origins()
        for default in found.defaults:
            file = self.repository.file_of(default.config_path)
            if file is not None:
                origins.add_file(file, default.package or "")
        known = {group: str(option) for group, option in found.overrides.known_choices.items() if option is not None}
        return Composition(tree, origins, {**known}, problems, incomplete=bool(problems))

    def _normalised(self, choice: Override) -> Override:
        """`+group=option` and `group=option` mean the same; Hydra tells groups with and without a default apart."""
        if choice.is_delete():
            return choice
        if choice.value() is None:  # `model=null` takes the group away, which Hydra spells ~model
            return replace(choice, type=OverrideType.DEL, value_type=None, _value=None)
        root = self.repository.load_config(ROOT)
        with_default = [d.group for d in (root.defaults_list if root else None) or [] if isinstance(d, GroupDefault)]
        if choice.key_or_group in with_default:
            return replace(choice, type=OverrideType.CHANGE)
        return replace(choice, type=OverrideType.ADD) if choice.key_or_group == "experiment" else choice

    def _unknown_option(self, config_path: str, choices: list[Override]) -> Problem:
        group, _, option = config_path.rpartition("/")
        options = self.options(group)
        known = f"choose one of {', '.join(options)}" if options else "no such folder or file in conf/ or --config-dir"
        return Problem(
            "unknown-option",
            f"{group} has no option `{option}`" if group else f"there is no config file `{option}`",
            self._where_chosen(group, option, choices),
            hint=known,
        )

    def _where_chosen(self, group: str, option: str, choices: list[Override]) -> tuple[Where, ...]:
        for choice in choices:
            if choice.key_or_group == group and choice.value() == option:
                return (Where(COMMAND_LINE, choice.input_line or ""),)
        for config_path in self.repository.loaded():
            file = self.repository.file_of(config_path)
            line = line_of_choice(file, group, option) if file else None
            if file is not None and line is not None:
                return (Where(f"{display(file)}:{line}", f"{group}: {option}"),)
        return ()


class _TolerantRepository(CachingConfigRepository):
    """Reads a file that is not YAML, or is known to be absent, as an empty one, and remembers the problem."""

    def __init__(self, delegate: Any, folders: tuple[Path, ...]):
        self.delegate = delegate  # not a deep copy, as Hydra would: nobody else has this one
        self.cache: dict[str, ConfigResult | None] = {}
        self.folders = folders
        self.asked: dict[str, Stamp] = {}
        """Every file that was looked for, in all folders, as it was before it was read: a new one counts too."""
        self.absent: set[str] = set()
        self.broken: dict[str, Problem] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path in self.absent or config_path in self.broken:
            return _empty_config()
        if f"config_path={config_path}" in self.cache:
            return super().load_config(config_path)
        files = {str(folder / f"{config_path}.yaml"): stamp(folder / f"{config_path}.yaml") for folder in self.folders}
        self.asked |= files
        key = ("file", self.folders, config_path)
        known = recall(key)
        if known is not None:
            self.cache[f"config_path={config_path}"] = known
            return known
        try:
            result = super().load_config(config_path)
            if result is not None:
                remember(key, result, files)
            return result
        except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException, OSError) as e:
            self.broken[config_path] = _broken_file(self._find(config_path), e)
            return _empty_config()

    def loaded(self) -> list[str]:
        return [key.removeprefix("config_path=") for key, result in self.cache.items() if result is not None]

    def file_of(self, config_path: str | None) -> Path | None:
        """The file that `config_path` was read from."""
        if config_path is None or config_path in self.absent or config_path in self.broken:
            return None
        return self._find(config_path)

    def _find(self, config_path: str) -> Path | None:
        files = (folder / f"{config_path}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)


def _empty_config() -> ConfigResult:
    return ConfigResult("rlrun", "", OmegaConf.create(), {"package": None}, [])


def _broken_file(file: Path | None, error: Exception) -> Problem:
    name = display(file) if file else "a file"
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark is not None else ""
    reason = getattr(error, "problem", None) or str(error).splitlines()[0]
    where = (Where(f"{name}{line}", _line_of(file, mark.line) if file and mark is not None else ""),)
    return Problem("yaml-syntax", f"{name} is not valid YAML: {reason}", where, hint="correct the file at that line")


def _line_of(file: Path, index: int) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[index].strip() if index < len(lines) else "(end of the file)"


def _not_composable(error: Exception) -> Problem:
    reason = " ".join(str(error).split()) or type(error).__name__
    return Problem(
        "not-composable",
        f"the chosen files do not fit together: {reason}",
        hint="see https://hydra.cc/docs/1.3/advanced/defaults_list/ for what a defaults list may say",
    )


@functools.cache
def _prepare_hydra() -> None:
    """Hydra without its plugin search, which imports launchers, sweepers and shell completions."""
    version.setbase("1.3")
    registry = SourcesRegistry.instance()
    for source in (FileConfigSource, StructuredConfigSource):
        if source.scheme() not in registry.types:
            registry.register(source)
    OmegaConf.register_new_resolver("recipes", recipe_file, replace=True)


__all__ = ["Composition", "ConfigCompositionException", "Groups"]
