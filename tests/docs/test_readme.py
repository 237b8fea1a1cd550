"""README says nothing that does not work. What trains is run by the engine tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from rlrun.cli import main

sys.path.insert(0, str(Path(__file__).parent))
from readme import ROOT, commands

OWN = ["rlrun", "plan", "--config-dir", "my_conf", "+experiment=mine"]
VERBS = (["rlrun", "plan"], ["rlrun", "explain"], ["rlrun", "diff"], ["rlrun", "models"])
LIGHT = [words for words in commands() if words[:2] in VERBS and words != OWN]


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_every_plan_and_explain_in_the_readme_works(words, capsys):
    assert main(words[1:]) == 0
    assert capsys.readouterr().out


def test_the_readmes_own_experiment_plans_as_printed(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```\w+\n# (\S+)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert [name for name, _ in blocks] == ["my_rewards.py", "my_conf/experiment/mine.yaml"]
    for name, text in blocks:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "2 + 3?", "label": "5"}\n' * 64)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "my_rewards", None)  # whatever another test has imported under this name
    del sys.modules["my_rewards"]
    assert OWN in commands()
    assert main(OWN[1:]) == 0
    assert "my_rewards:score" in capsys.readouterr().out


def test_the_readme_has_all_kinds_of_commands():
    kinds = {" ".join(words[:2]) for words in commands()}
    assert {"make quickstart", "make test", "rlrun plan", "rlrun explain", "rlrun -m"} <= kinds


def test_every_make_target_in_the_readme_exists():
    text = (ROOT / "README.md").read_text() + (ROOT / ".ci" / "run").read_text()
    named = set(re.findall(r"\bmake ([a-z][a-z-]*)", text))
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    assert named <= targets
    assert named


def test_every_path_in_the_readme_exists():
    text = (ROOT / "README.md").read_text()
    paths = re.findall(r"\b((?:conf|recipes|rlrun|benchmarks|requirements|tests)/[\w/.]+\w)", text)
    missing = [p for p in paths if not (ROOT / p).exists()]
    assert paths
    assert not missing
