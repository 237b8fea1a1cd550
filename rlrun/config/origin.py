"""Which file and line, or which word of the command line, set a key."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlrun.config.shipped import shipped
from rlrun.errors import Where

COMMAND_LINE = "command line"
DEFAULT = "default"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def display(path: Path) -> str:
    """A file as people should see it: `conf/...` when it is ours, else relative to here when it lies below."""
    for base, prefix in ((shipped("conf"), "conf/"), (Path.cwd(), "")):
        if path.is_relative_to(base):
            return prefix + str(path.relative_to(base))
    return str(path)


@dataclass
class Origins:
    """Dotted key -> who set it. Later settings replace earlier ones, as the values do."""

    _of: dict[str, Where] = field(default_factory=dict)
    _groups: dict[str, Where] = field(default_factory=dict)
    """Keys of mappings: what such a mapping leaves out is a default, not something that it set."""
    _lists: set[str] = field(default_factory=set)
    """Keys of lists whose entries are mappings, which are known line by line beside the list itself."""

    def add_file(self, path: Path, package: str) -> None:
        """Every key of a YAML file, whose content goes below `package`."""
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
        if isinstance(root, yaml.MappingNode):
            if package:
                self._groups[package] = Where(display(path), "")
            self._walk(root, display(path), package, is_root=True)

    def add_value(self, key: str, value: Any, where: Where) -> None:
        """A key, or every key below it, that came from one place: a word of the command line, a stored plan."""
        if isinstance(value, dict) and value:
            self._groups[key] = where
            for name, item in value.items():
                self.add_value(f"{key}.{name}", item, where)
        else:
            self._set(key, where)

    def __contains__(self, key: str) -> bool:
        return key in self._of

    def on_command_line(self, key: str) -> bool:
        """Whether a word of the command line set the key, a part of it or a group around it."""
        return any(
            where.origin == COMMAND_LINE and (k == key or k.startswith(f"{key}.") or key.startswith(f"{k}."))
            for known in (self._of, self._groups)
            for k, where in known.items()
        )

    def of(self, key: str) -> str:
        """Where `key` was set, or the group or list around it; `default` when nowhere."""
        found = self._find(key)
        return found.origin if found else DEFAULT

    def where(self, key: str, value: Any) -> Where:
        """The origin of a key together with its value, to show in a message."""
        found = self._find(key)
        if found is not None and found.text:
            return found  # a word of the command line, as typed
        return Where(found.origin if found else DEFAULT, f"{key}: {show(value)}")

    def _find(self, key: str) -> Where | None:
        if key in self._groups and key not in self._of:
            return self._groups[key]
        if key in self._lists and key in self._of:
            return self._of[key]
        below = [where for k, where in self._of.items() if k.startswith(f"{key}.")]
        if below:  # a mapping that is known by its items, such as reward.arguments
            return below[-1]
        while key and key not in self._of:
            above = key.rpartition(".")[0]
            if above in self._lists and key in self._groups:
                return self._groups[key]  # an entry of a list, of which it is no key
            key = above
        return self._of.get(key)

    def _set(self, key: str, where: Where) -> None:
        for below in [k for k in self._of if k.startswith(f"{key}.")]:
            del self._of[below]
        if key in self._lists:
            self._lists.discard(key)
            for entry in [k for k in self._groups if k.startswith(f"{key}.")]:
                del self._groups[entry]
        self._of[key] = where

    def _walk(self, node: yaml.MappingNode, file: str, prefix: str, is_root: bool = False) -> None:
        for key_node, value_node in node.value:
            name = str(key_node.value)
            if is_root and name == "defaults":
                continue
            if name == "<<" and isinstance(value_node, yaml.MappingNode):
                self._walk(value_node, file, prefix)
                continue
            key = f"{prefix}.{name}" if prefix else name
            where = Where(f"{file}:{key_node.start_mark.line + 1}", "")
            if isinstance(value_node, yaml.MappingNode):
                self._groups[key] = where
                self._of.pop(key, None)
                self._walk(value_node, file, key)
            else:
                self._set(key, where)
            if isinstance(value_node, yaml.SequenceNode):
                self._walk_list(value_node, file, key)

    def _walk_list(self, node: yaml.SequenceNode, file: str, key: str) -> None:
        for index, entry in enumerate(node.value):
            if isinstance(entry, yaml.MappingNode):
                self._lists.add(key)
                self._groups[f"{key}.{index}"] = Where(f"{file}:{entry.start_mark.line + 1}", "")
                self._walk(entry, file, f"{key}.{index}")


def line_of_choice(path: Path, group: str, option: str) -> int | None:
    """The line on which a file's defaults list chooses `option` of `group`."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    if not isinstance(root, yaml.MappingNode):
        return None
    for key_node, entries in root.value:
        if key_node.value != "defaults" or not isinstance(entries, yaml.SequenceNode):
            continue
        for entry in entries.value:
            for choice_key, choice in entry.value if isinstance(entry, yaml.MappingNode) else ():
                if choice_key.value.split()[-1].strip("/") == group and choice.value == option:
                    return choice.start_mark.line + 1
    return None


def show(value: Any) -> str:
    """A value as it would be written in YAML, on one line and not endlessly long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off")
        text = value if plain else json.dumps(value, ensure_ascii=False)
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{k}: {show(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(show(v) for v in value) + "]"
    else:
        text = f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_PLAIN = re.compile(r"[A-Za-z_/~][\w./~@+-]*(:[\w./~@+-]+)*( [\w./~@+-]+)*")
