"""`rlrun models` says what limits.py allows, and names tests that exist and are about the family."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.cli import main
from rlrun.families import FAMILIES
from rlrun.plan import limits
from rlrun.plan.catalog import ALL, TESTS, catalog

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def entries():
    return {entry.name: entry for entry in catalog()}


def test_every_family_and_every_shipped_model_is_there_once(entries):
    assert list(entries) == list(FAMILIES)
    names = [model.name for entry in entries.values() for model in entry.models]
    assert sorted(names) == sorted(file.stem for file in (ROOT / "conf" / "model").glob("*.yaml"))
    assert {m.name: m.parameters for m in entries["qwen3"].models}["qwen3_4b"] == 4_022_468_096


def test_what_is_trained_is_what_limits_allow(entries, monkeypatch):
    assert {name for name, entry in entries.items() if entry.train["train"]} == set(limits.RUNNABLE)
    assert entries["qwen3"].train["ep"] is None
    monkeypatch.setattr(limits, "RUNNABLE", ("glm4",))
    monkeypatch.setattr(limits, "RULES", ())
    again = {entry.name: entry for entry in catalog()}
    assert not again["minimax_m2"].train["train"]
    assert not again["minimax_m2"].rollout["cuda"]
    assert again["glm4"].train["tp"]


def test_an_engine_that_keeps_an_old_router_generates_nowhere(entries):
    for family in limits.STALE_ROUTER:
        assert entries[family].rollout == {"cpu": False, "cuda": False}
        assert entries[family].train["train"]


@pytest.mark.parametrize("evidence", TESTS, ids=lambda e: e.test.rsplit("::", 1)[1])
def test_what_was_tested_is_a_test_that_exists(evidence):
    """For each family that is named, its module has a fixture, a plan or a list of all families."""
    path, name = evidence.test.split("::")
    source = (ROOT / path).read_text(encoding="utf-8")
    assert name in {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    if evidence.families != ALL and evidence.families != ("qwen3",):
        assert [family for family in evidence.families if f'"{family}"' not in source] == []


def test_the_table_names_everything(capsys):
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {family} " in text for family in FAMILIES)
    assert all(evidence.test in text for evidence in TESTS)
    assert "4,022,468,096" in text


def test_the_json_is_the_same_and_takes_no_torch():
    code = (
        "import sys, time; from rlrun.cli import main; began = time.process_time(); "
        "status = main(['models', '--json']); "
        "assert 'torch' not in sys.modules; assert time.process_time() - began < 1; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    families = json.loads(done.stdout)["families"]
    assert [family["name"] for family in families] == list(FAMILIES)
    assert families[0]["tested"][0].keys() == {"what", "test"}
