"""docs/plan.md names every field of the JSON and no other, and its commands work."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from rlrun.cli import main
from rlrun.plan.render import JSON_SCHEMA
from rlrun.plan.types import RunPlan

sys.path.insert(0, str(Path(__file__).parent))
from readme import ROOT

PAGE = (ROOT / "docs" / "plan.md").read_text()
COMMANDS = [line.split("#")[0].split() for line in PAGE.splitlines() if line.startswith("    rlrun ")]


def table(heading: str) -> set[str]:
    """Names in the first column of the table after a line."""
    after = PAGE.split(heading)[1].split("|---|---|\n")[1].split("\n\n")[0]
    return set(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in after.splitlines())))


def test_every_field_of_the_plan_is_described():
    assert table("Fields of `plan`") == {f.name for f in dataclasses.fields(RunPlan)}


def test_every_field_of_the_document_is_described(capsys):
    assert main(["plan", "--json", "+experiment=quickstart"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert table("`--json` prints one object.") == set(document)
    assert f"| `schema` | {JSON_SCHEMA} |" in PAGE


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_on_the_page_works(words, capsys):
    assert main(words[1:]) == 0
    assert capsys.readouterr().out
