"""The schema as a table: every key a user may write, what it expects, its default and its documentation."""

from __future__ import annotations

import difflib
import functools
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from rlrun.config.schema import RunConfig
from rlrun.config.sections.base import Section


@dataclass(frozen=True)
class Key:
    """One key of the schema, a section or a leaf, by its dotted path."""

    path: str
    expected: str
    """What its value has to be, in words."""
    doc: str
    required: bool
    default: Any
    """Meaningless when required."""
    section: type[Section] | None
    open: bool
    """Holds free keys of its own, such as reward.arguments."""
    semantic: bool
    """Part of the config hash."""
    item: type[Section] | None = None
    """What each entry is, of a list or mapping of groups of keys."""


@functools.cache
def all_keys() -> dict[str, Key]:
    """Dotted path -> Key, in the order of the schema; a section comes before its keys."""
    found: dict[str, Key] = {}
    _collect(RunConfig, "", True, found)
    return found


def find_key(path: str) -> Key | None:
    """The key at `path`, in an entry of a list too (`placement.rollout.server_groups.0.gpus`), or the open key it lies
    below; None when the schema has neither."""
    keys = all_keys()
    if path in keys:
        return keys[path]
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        parent = keys.get(".".join(parts[:length]))
        if parent is not None:
            if parent.item is not None and (parent.open or parts[length].isdigit()):
                return _in_item(parent, parts[: length + 1], parts[length + 1 :])
            return parent if parent.open else None
    return None


def _in_item(parent: Key, entry: list[str], rest: list[str]) -> Key | None:
    """The key `rest` of one entry of a list or mapping; the list or mapping itself for the entry as a whole."""
    if not rest:
        return parent
    assert parent.item is not None
    inner: dict[str, Key] = {}
    _collect(parent.item, ".".join(entry) + ".", parent.semantic, inner)
    found = inner.get(".".join([*entry, rest[0]]))
    return found if found is not None and (len(rest) == 1 or found.open) else None


def item_keys(path: str) -> tuple[str, list[str]] | None:
    """When `path` lies in an entry of a list or mapping of groups: that entry's path, and the keys an entry has."""
    parts = path.split(".")
    for length in range(len(parts) - 2, 0, -1):
        parent = all_keys().get(".".join(parts[:length]))
        if parent is not None and parent.item is not None:
            return ".".join(parts[: length + 1]), list(parent.item.model_fields)
    return None


def expected(path: str) -> str:
    """What the value at `path` has to be, in words."""
    known = find_key(path)
    return known.expected if known is not None else "a value"


def nearest_key(path: str) -> str | None:
    """The key that was probably meant: alike in its last word first, in the whole path second."""
    last = path.rsplit(".", 1)[-1]
    if last in _OTHER_NAMES:
        return _OTHER_NAMES[last]

    def likeness(candidate: str) -> float:
        words = difflib.SequenceMatcher(None, last, candidate.rsplit(".", 1)[-1]).ratio()
        return 0.7 * words + 0.3 * difflib.SequenceMatcher(None, path, candidate).ratio()

    best = max(all_keys(), key=likeness)
    return best if likeness(best) >= 0.6 else None


def section_of(annotation: Any) -> type[Section] | None:
    """The section a field holds, optional or not; none for a list or mapping of sections."""
    if get_origin(annotation) in (list, dict):
        return None
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def item_of(annotation: Any) -> type[Section] | None:
    """The section of which a field holds a list or a mapping."""
    if get_origin(annotation) not in (list, dict):
        return None
    last = get_args(annotation)[-1]
    return last if isinstance(last, type) and issubclass(last, Section) else None


def _collect(section: type[Section], prefix: str, semantic: bool, found: dict[str, Key]) -> None:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        inner = section_of(field.annotation)
        counts = semantic and bool(extra.get("semantic", True))
        doc = field.description or (inner.__doc__ if inner else None) or ""
        found[path] = Key(
            path=path,
            expected=describe(field.annotation, field.metadata),
            doc=" ".join(doc.split()),
            required=field.is_required(),
            default=None if field.default is PydanticUndefined else field.default,
            section=inner,
            open=get_origin(field.annotation) is dict,
            semantic=counts,
            item=item_of(field.annotation),
        )
        if inner is not None:
            _collect(inner, f"{path}.", counts, found)


def describe(annotation: Any, metadata: Any = ()) -> str:
    """What a type accepts, in words: `a whole number, at least 1`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        nested = [m for extra in arguments[1:] for m in getattr(extra, "metadata", [extra])]
        return describe(arguments[0], nested)
    if origin in (Union, types.UnionType):
        inner = [describe(a, metadata) for a in arguments if a is not type(None)]
        return " or ".join([*inner, "null"])
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments) if len(arguments) > 1 else f"only {arguments[0]}"
    if origin is list:
        items = describe(arguments[0])
        kind = {"a text": "texts", "a group of keys": "groups of keys"}.get(items, items)
        least = any(getattr(constraint, "min_length", None) for constraint in metadata)
        return f"a list of {kind}{', not empty' if least else ''}"
    if origin is dict:
        return f"a mapping of names to {'groups of keys' if item_of(annotation) else 'values'}"
    if section_of(annotation) is not None:
        return "a group of keys"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[annotation] + _bounds(
        metadata
    )


def _bounds(metadata: Any) -> str:
    words = []
    for constraint in metadata:
        if getattr(constraint, "pattern", None):
            words.append(_PATTERNS.get(constraint.pattern, f"that matches {constraint.pattern}"))
        for attribute, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
            bound = getattr(constraint, attribute, None)
            if bound is not None:
                words.append(f"{word} {bound:g}" if isinstance(bound, float) else f"{word} {bound}")
    return ", " + " and ".join(words) if words else ""


# What other RL frameworks call the same thing.
_OTHER_NAMES = {
    "learning_rate": "algo.lr",
    "n_samples_per_prompt": "algo.group_size",
    "num_generations": "algo.group_size",
    "rollout_batch_size": "algo.prompts_per_rollout",
    "train_batch_size": "algo.groups_per_step",
    "global_batch_size": "algo.groups_per_step",
    "num_rollout": "num_steps",
    "total_steps": "num_steps",
    "max_new_tokens": "rollout.max_response_tokens",
    "tensor_model_parallel_size": "placement.trainer.tp",
    "pipeline_model_parallel_size": "placement.trainer.pp",
    "context_parallel_size": "placement.trainer.cp",
    "rollout_num_gpus_per_engine": "placement.rollout.gpus_per_engine",
    "gpu_memory_utilization": "rollout.sglang.mem_fraction_static",
    "sglang_config": "placement.rollout.server_groups",
    "rollout_external_engine_addrs": "placement.rollout.external",
    "prefill_num_servers": "placement.rollout.server_groups",
    "num_gpus_per_node": "placement.gpus_per_node",
    "rollout_num_gpus": "placement.rollout.gpus",
    "actor_num_nodes": "placement.num_nodes",
}

_PATTERNS = {
    r"\S": "not empty",
    r"^\w[\w.-]*$": "of letters, digits, `_`, `.` and `-` that does not begin with `.` or `-`",
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": "such as package.module:name",
}
