"""`rlrun models` says what limits.py allows, and names tests that exist and are about the family."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.cli import main
from rlrun.errors import RlrunError
from rlrun.families import FAMILIES
from rlrun.plan import limits
from rlrun.plan.build import load_plan
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


def test_a_limit_of_this_version_shows(entries, monkeypatch):
    """Whatever rlrun refuses to run for a family or a layout, the table says no to."""

    def refuse(plan):
        refused = plan.model.spec.family == "glm4" or plan.train.pp > 1
        return [limits.Limit("not-yet", "this", "wait")] if refused else []

    assert entries["glm4"].train["train"]
    assert entries["glm4"].rollout == {"cpu": True, "cuda": True}
    monkeypatch.setattr(limits, "RULES", (*limits.RULES, refuse))
    again = {entry.name: entry for entry in catalog()}
    assert not again["glm4"].train["train"]
    assert again["glm4"].rollout == {"cpu": False, "cuda": False}
    assert [again["qwen3"].train[name] for name in ("train", "tp", "pp")] == [True, True, False]


def test_only_experts_are_shared_among_ranks_of_their_own(entries):
    moe = {name for name, entry in entries.items() if entry.train["ep"] is not None}
    assert moe == {"qwen3_moe", "qwen3_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2"}
    assert {name for name, entry in entries.items() if entry.train["etp"] is not None} == moe


@pytest.mark.parametrize("family", FAMILIES)
def test_context_parallelism_is_refused_where_the_table_says_so(entries, family):
    words = ["+experiment=quickstart", f"model=tiny_{family}", "placement.trainer.gpus=2", "placement.trainer.cp=2"]
    try:
        load_plan([*words, "placement.mode=disaggregated", "placement.gpus_per_node=3"])
        refused = set()
    except RlrunError as e:
        refused = {p.code for p in e.problems}
    assert ("cp-unsupported" in refused) == (entries[family].train["cp"] is False)


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
