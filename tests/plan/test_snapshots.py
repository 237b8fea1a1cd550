"""The plan of every shipped experiment, letter by letter: a change of a default, a rule or the text shows here."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from update_snapshots import EXPERIMENTS, SNAPSHOTS, plan_text

UPDATE = "when this is what you want: python tests/plan/update_snapshots.py"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_plan_of_a_shipped_experiment_is_the_one_on_file(name):
    file = SNAPSHOTS / f"{name}.txt"
    before, now = file.read_text(encoding="utf-8") if file.exists() else "", plan_text(name)
    difference = difflib.unified_diff(before.splitlines(), now.splitlines(), str(file), "now", lineterm="", n=1)
    if before != now:
        pytest.fail("\n".join(["the plan is another one", *difference, UPDATE]), pytrace=False)


def test_there_is_no_snapshot_of_an_experiment_that_is_gone():
    assert sorted(file.stem for file in SNAPSHOTS.iterdir()) == EXPERIMENTS, UPDATE


def test_snapshots_name_no_place_on_this_machine():
    for file in SNAPSHOTS.iterdir():
        assert str(Path(__file__).parents[2]) not in file.read_text(encoding="utf-8")
