"""`rlrun diff`: what differs between two configurations or runs, and whether they are the same experiment.

A side is an experiment's name, a file of command-line words (`@file`), or a plan that was saved: the folder of a run,
its plan.json, or what `rlrun plan --json` printed. Saved plans are read as plain values, so that a run of an older
version, whose plan had other fields, can still be compared.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rlrun.config.compose import Groups
from rlrun.config.keys import all_keys, find_key
from rlrun.config.load import load
from rlrun.config.origin import COMMAND_LINE, DEFAULT, show
from rlrun.errors import Problem, RlrunError, Where
from rlrun.plan.build import plan_of
from rlrun.plan.render import JSON_SCHEMA, Style, shorten

PLAN_FILE = "plan.json"
WIDEST = 28
"""Characters of a value in a table."""


class _NotSet:
    """The value of a key that a configuration does not have, such as data.eval.path where data.eval is null."""

    def __repr__(self) -> str:
        return "not set"


NOT_SET = _NotSet()


@dataclass(frozen=True)
class Side:
    """One of the two: its plan as plain values, and where its keys were set."""

    word: str
    config_hash: str
    config: dict[str, Any]
    """Dotted key -> value."""
    decided: dict[str, Any]
    """The fields of the plan that `rlrun plan --json` prints, nested as there."""
    origins: Mapping[str, str]
    """Dotted key -> who set it; keys whose origin is not known are absent."""


@dataclass(frozen=True)
class Difference:
    """One key or decided field with both values; an origin is None when it is not known."""

    key: str
    a: Any
    b: Any
    a_origin: str | None = None
    b_origin: str | None = None


@dataclass(frozen=True)
class Comparison:
    a: Side
    b: Side
    semantic: tuple[Difference, ...]
    """Keys that change what is learned."""
    other: tuple[Difference, ...]
    """Layout, tracking, deadlines, labels."""
    decided: tuple[Difference, ...]
    """What the plans made of it, without what only repeats a key."""

    @property
    def same_experiment(self) -> bool:
        return self.a.config_hash == self.b.config_hash


def diff(words: Sequence[str], config_dir: str | None = None) -> Comparison:
    """Compares two sides. Raises RlrunError with the problems of both when one has no plan."""
    sides: list[Side] = []
    problems: list[Problem] = []
    for word in words:
        try:
            sides.append(_open(word, config_dir))
        except RlrunError as e:
            in_side = {p: p.summary if word in p.summary else f"{p.summary} (in {word})" for p in e.problems}
            problems += [dataclasses.replace(p, summary=summary) for p, summary in in_side.items()]
    if problems:
        raise RlrunError(list(dict.fromkeys(problems)))
    return compare(*sides)


def compare(a: Side, b: Side) -> Comparison:
    """The differing keys, in the order of the schema, and the differing decisions, in the order of the plan."""
    order = {key: place for place, key in enumerate(all_keys())}
    changed = [
        Difference(key, x, y, a.origins.get(key), b.origins.get(key)) for key, x, y in _pairs(a.config, b.config)
    ]
    changed.sort(key=lambda d: order.get(_known(d.key), len(order)))
    decided = _decided_differently(a.decided, b.decided)
    # With equal hashes nothing that differs counts: files are compared by their content.
    counts = [d for d in changed if a.config_hash != b.config_hash and _is_semantic(d.key)]
    return Comparison(
        a,
        b,
        tuple(counts),
        tuple(d for d in changed if d not in counts),
        tuple(d for d in decided if not any(_repeats(d, key) for key in changed)),
    )


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    pairs = [(key, a.get(key, NOT_SET), b.get(key, NOT_SET)) for key in dict.fromkeys([*a, *b])]
    return [(key, x, y) for key, x, y in pairs if x != y]


def _decided_differently(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[Difference]:
    """Fields that differ; a part that only one of the plans has, such as a router, is one difference."""
    found: list[Difference] = []
    for name in dict.fromkeys([*a, *b]):
        x, y = a.get(name, NOT_SET), b.get(name, NOT_SET)
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            found += _decided_differently(x, y, f"{prefix}{name}.")
        elif x != y:
            found.append(Difference(f"{prefix}{name}", x, y))
    return found


def _known(key: str) -> str:
    """The key of the schema at or above `key`; itself when there is none, as in a plan of another version."""
    found = find_key(key)
    return found.path if found is not None else key


def _is_semantic(key: str) -> bool:
    found = find_key(key)
    return found is None or found.semantic


def _repeats(decided: Difference, key: Difference) -> bool:
    """Whether a field of the plan only hands a key on: the same values under (the end of) the same name."""
    names = [d.key.rsplit(".", 1)[-1] for d in (key, decided)]
    return (decided.a, decided.b) == (key.a, key.b) and names[0].endswith(names[1])


def _open(word: str, config_dir: str | None) -> Side:
    if word.startswith("@"):
        return _composed(word, _words_of(word[1:]), config_dir)
    experiments = Groups(config_dir).options("experiment")
    if word in experiments:
        return _composed(word, [f"+experiment={word}"], config_dir)
    if os.path.exists(word) or "/" in word or word.endswith(".json"):
        return _saved(word)
    close = difflib.get_close_matches(word, experiments, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"the experiments are {', '.join(experiments)}"
    hint += " A run is given by its folder, and words of the command line by a file of them, @FILE."
    summary = f"there is no experiment, run folder or plan.json `{word}`"
    raise RlrunError(Problem("unknown-option", summary, (Where(COMMAND_LINE, word),), hint))


def _words_of(path: str) -> list[str]:
    """Words of the command line, as a shell would split them; # begins a comment."""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return shlex.split(file.read(), comments=True)
    except (OSError, ValueError) as e:
        reason = (getattr(e, "strerror", None) or str(e)).lower()
        hint = "give a text file with the words of one run, e.g. +experiment=quickstart algo.lr=1e-4"
        where = (Where(COMMAND_LINE, f"@{path}"),)
        raise RlrunError(Problem("words-unreadable", f"cannot read {path}: {reason}", where, hint)) from None


def _composed(word: str, words: Sequence[str], config_dir: str | None) -> Side:
    loaded = load(words, config_dir)
    plan = plan_of(loaded)
    config = _flat(plan.resolved_config)
    return _side(word, dataclasses.asdict(plan), {key: loaded.origins.of(_known(key)) for key in config})


def _saved(path: str) -> Side:
    """A plan.json, the folder it is in, or the output of `rlrun plan --json`."""
    file = os.path.join(path, PLAN_FILE) if os.path.isdir(path) else path
    where = (Where(COMMAND_LINE, path),)
    if not os.path.isfile(file):
        summary = f"{path} holds no {PLAN_FILE}" if os.path.isdir(path) else f"there is no file {path}"
        raise RlrunError(Problem("no-run-there", summary, where, "give the folder of a run: ls -d runs/*/*"))
    try:
        with open(file, encoding="utf-8") as f:
            plan = json.load(f)
        plan = plan.get("plan", plan)
        changed = {change["key"]: str(change["origin"]) for change in plan["changed"]}
        return _side(path, plan, changed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        summary = f"{file} is not a plan: {type(e).__name__}: {e}"
        hint = f"give a {PLAN_FILE} that a run wrote, or what `rlrun plan --json` printed"
        raise RlrunError(Problem("plan-unreadable", summary, where, hint)) from None


def _side(word: str, plan: Mapping[str, Any], origins: Mapping[str, str]) -> Side:
    config = _flat(plan["resolved_config"])
    known: dict[str, str] = {}
    for key, value in config.items():
        schema = find_key(key)
        is_default = schema is not None and not schema.required and value == schema.default
        origin = origins.get(key, DEFAULT)
        if origin != DEFAULT or is_default:  # a value that is no default, and was set by nobody, was found in a file
            known[key] = origin
    return Side(word, str(plan["config_hash"]), config, _decisions(plan), known)


def _decisions(plan: Mapping[str, Any]) -> Any:
    """The decided fields: lists of slots as their number, equal engines as one, the model's shape as its size."""
    own = {k: v for k, v in plan.items() if k not in ("resolved_config", "changed", "config_hash", "experiment")}
    engines, model = plan["engines"], plan["model"]
    own["slots"] = len(plan["slots"])
    own["train"] = {**plan["train"], "slots": len(plan["train"]["slots"])}
    own["model"] = {**model, "spec": {"num_parameters": model["spec"]["num_parameters"]}}
    own["engines"] = {"number": len(engines), **_engines(engines)}
    if "deployment" in plan:  # plans of older versions have none
        groups = plan["deployment"]["groups"]
        sizes = {g["name"]: {**g, "slots": len(g["slots"]), "engines": len(g["engines"])} for g in groups}
        own["deployment"] = {**plan["deployment"], "groups": sizes}
    return json.loads(json.dumps(own))  # tuples as the lists that a saved plan has


def _engines(engines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the engines of each group have in common; without the group's name when there is one group."""
    place = ("index", "slots", "port", "dist_port", "bootstrap_port", "nodes")
    groups: dict[str, dict[str, Any]] = {}
    for engine in engines:
        own = {name: value for name, value in engine.items() if name not in place}
        groups.setdefault(engine.get("group", ""), own)
    return next(iter(groups.values())) if len(groups) == 1 else dict(groups)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by their dotted keys; a mapping without keys has none."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        elif value is not None or prefix + name not in _GROUPS:
            found[f"{prefix}{name}"] = value
    return found


_GROUPS = ("data.eval",)
"""Groups that may be null: their absence is told by their keys."""


def render_diff(found: Comparison, stream: TextIO | None = None) -> str:
    """Tables of differences for people; `stream` decides about colour."""
    style = Style(stream)
    a, b = found.a, found.b
    blocks = [style.bold(f"a  {a.word}") + "\n" + style.bold(f"b  {b.word}")]
    if found.same_experiment:
        nothing = not (found.other or found.decided)
        same = f"the same experiment, config hash {a.config_hash}"
        blocks.append(f"No difference: {same}." if nothing else f"They are {same}.")
    else:
        blocks.append(f"They are different experiments: config hash {a.config_hash} and {b.config_hash}.")
        if not found.semantic:
            blocks[-1] += "\nNo key says why: the files behind data or model differ, or what was decided below."
    for title, rows in (
        ("Changes the experiment", found.semantic),
        ("Changes nothing that is learned", found.other),
        ("Decided differently", found.decided),
    ):
        if rows:
            blocks.append(style.bold(title) + "\n" + _table(rows, style))
    return "\n\n".join(blocks)


def _table(rows: Sequence[Difference], style: Style) -> str:
    cells = [(d.key, _shown(d.a), _shown(d.b), _origins(d)) for d in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join(
        f"  {key:<{widths[0]}}  {x:<{widths[1]}} -> {y:<{widths[2]}}   {style.dim(origin)}".rstrip()
        for key, x, y, origin in cells
    )


def _shown(value: Any) -> str:
    if value is NOT_SET:
        return repr(value)
    if isinstance(value, str) and os.path.isabs(value):
        relative = os.path.relpath(value)
        value = value if relative.startswith("..") else relative
    return shorten(show(value), WIDEST)


def _origins(d: Difference) -> str:
    origins = [d.a_origin or "?", d.b_origin or "?"]
    if origins == ["?", "?"]:
        return ""
    return origins[0] if origins[0] == origins[1] else " -> ".join(origins)


def diff_document(found: Comparison) -> dict[str, Any]:
    """`rlrun diff --json`. A value that is not set is null and its `*_set` false."""
    return {
        "schema": JSON_SCHEMA,
        "a": {"word": found.a.word, "config_hash": found.a.config_hash},
        "b": {"word": found.b.word, "config_hash": found.b.config_hash},
        "same_experiment": found.same_experiment,
        "semantic": [_row(d) for d in found.semantic],
        "other": [_row(d) for d in found.other],
        "decided": [_row(d) for d in found.decided],
    }


def _row(d: Difference) -> dict[str, Any]:
    values = {name: None if v is NOT_SET else v for name, v in (("a", d.a), ("b", d.b))}
    is_set = {"a_set": d.a is not NOT_SET, "b_set": d.b is not NOT_SET}
    return {"key": d.key, **values, **is_set, "a_origin": d.a_origin, "b_origin": d.b_origin}
