"""The schema of `rlrun.config.schema` as JSON Schema, for editors that check and complete YAML while it is typed.

Describes what a file under conf/ may say, which is less strict than what a run needs: a file sets some of the keys, so
none is required; `defaults` is Hydra's; and a `${...}` may stand for any value.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from rlrun.config.keys import all_keys, open_sections, section_of
from rlrun.config.origin import COMMAND_LINE
from rlrun.config.schema import RunConfig
from rlrun.config.sections.base import Section
from rlrun.errors import Problem, RlrunError, Where

if TYPE_CHECKING:
    from rlrun.config.arguments.table import Argument

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest one that every YAML language server knows."""

INTERPOLATION = {"type": "string", "pattern": r"\$\{.+\}"}


def json_schema(group: str | None = None) -> dict[str, Any]:
    """JSON Schema (draft 7) of a file in conf/experiment, or in conf/<group> for a group such as `model`.

    Raises RlrunError (unknown-option) when there is no such group.
    """
    sections = {name: s for name, f in RunConfig.model_fields.items() if (s := section_of(f.annotation)) is not None}
    whole = group in (None, "experiment", "placement")  # whose files begin with `# @package _global_`
    if not whole and group not in sections:
        close = difflib.get_close_matches(str(group), sections, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"the groups are experiment, {', '.join(sections)}"
        where = (Where(COMMAND_LINE, f"schema {group}"),)
        raise RlrunError(Problem("unknown-option", f"there is no group `{group}`", where, hint))
    section: type[Section] = RunConfig if whole else sections[str(group)]
    schema = _for_files(_with_arguments(section.model_json_schema()))
    hydra = {"type": "array", "description": "Hydra's defaults list: the group options this file starts from."}
    schema["properties"] = {"defaults": hydra, **schema["properties"]}
    kind = "experiment" if whole else group
    return {"$schema": DIALECT, "title": f"rlrun {kind}", **schema}


def _with_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """With the arguments of engines that open sections take, and closed to other names."""
    from rlrun.config.arguments.check import about, offered, usual
    from rlrun.config.arguments.table import table

    for path, engine in open_sections().items():
        name = all_keys()[path].section.__name__  # type: ignore[union-attr]
        node = schema if schema.get("title") == name else schema.get("$defs", {}).get(name)
        if node is None:  # a schema of another group
            continue
        for argument in (table(engine).arguments[name] for name in offered(engine)):
            described = {"description": about(engine, argument.name), "default": usual(engine, argument.name)}
            node.setdefault("properties", {}).setdefault(argument.name, _argument(argument) | described)
        node["additionalProperties"] = False
    return schema


def _argument(argument: Argument) -> dict[str, Any]:
    """A type and choices of the recorded table as JSON Schema."""
    if argument.choices and not argument.types[0].startswith("list"):
        null = [None] if "null" in argument.types else []
        return {"enum": list(dict.fromkeys([*argument.choices, argument.default, *null]))}
    return {"anyOf": [_type(kind, argument.choices) for kind in argument.types]}


def _type(kind: str, choices: tuple[Any, ...]) -> dict[str, Any]:
    if kind.startswith("list["):
        return {"type": "array", "items": {"enum": list(choices)} if choices else _type(kind[5:-1], ())}
    names = {"bool": "boolean", "int": "integer", "float": "number", "mapping": "object", "null": "null"}
    return {"type": names.get(kind, "string")}


def _for_files(node: Any) -> Any:
    """Without what pydantic adds for itself, without `required`, and with `${...}` allowed for every value."""
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for name, value in node.items():
        if name == "properties":
            kept[name] = {key: _value(_for_files(inner)) for key, inner in value.items()}
        elif name == "$defs":
            kept[name] = {key: _for_files(inner) for key, inner in value.items()}
        elif name == "description":
            kept[name] = " ".join(value.split())
        elif name not in ("title", "required", "semantic"):
            kept[name] = value
    return kept


def _value(schema: dict[str, Any]) -> dict[str, Any]:
    """A property that may also be written as `${...}`; plain texts can be anyway."""
    outside: dict[str, Any] = {name: schema.pop(name) for name in ("description", "default") if name in schema}
    if schema == {"type": "string"}:
        return {**schema, **outside}
    return {"anyOf": [*schema.get("anyOf", [schema]), dict(INTERPOLATION)], **outside}
