"""mutations.yaml: experiments with one defect are refused for that defect alone, and right variants plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.codes import CODES

HERE = Path(__file__).parent
FILES = [HERE / "mutations.yaml", *sorted((HERE / "mutations").glob("*.yaml"))]
ENTRIES: dict[str, list[dict[str, Any]]] = {"broken": [], "valid": []}
for file in FILES:
    for kind, entries in yaml.safe_load(file.read_text(encoding="utf-8")).items():
        ENTRIES[kind] += entries


def codes(entry: dict[str, Any], folder: Path) -> list[str]:
    """Different codes of an entry, planned in `folder`."""
    for name, text in entry.get("files", {}).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    try:
        load_plan([f"+experiment={entry['base']}", *shlex.split(entry["words"])])
    except RlrunError as e:
        return sorted({p.code for p in e.problems})
    return []


def expected(entry: dict[str, Any]) -> list[str]:
    return sorted([entry["code"]] if isinstance(entry["code"], str) else entry["code"])


def misses(entries: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = []
    for number, entry in enumerate(entries):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        got, want = codes(entry, folder), expected(entry) if "code" in entry else []
        if got != want:
            found.append(f"{entry['base']} {entry['words']}: expected {want or 'a plan'}, got {got or 'a plan'}")
    return found


def test_every_defect_is_named_and_nothing_else(tmp_path, monkeypatch):
    missed = misses(ENTRIES["broken"], tmp_path, monkeypatch)
    assert not missed, "\n".join(["", *missed])


def test_right_variants_plan_without_a_word(tmp_path, monkeypatch):
    missed = misses(ENTRIES["valid"], tmp_path, monkeypatch)
    assert not missed, "\n".join(["", *missed])


def test_there_are_many_and_no_two_are_the_same():
    broken, valid = ENTRIES["broken"], ENTRIES["valid"]
    assert len(broken) >= 80
    assert len(valid) >= 40
    both = [(entry["base"], entry["words"], str(entry.get("files"))) for entry in (*broken, *valid)]
    assert len(set(both)) == len(both)
    assert {code for entry in broken for code in expected(entry)} <= set(CODES)
