"""What a run reads before Ray starts, without the tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.errors import RunFailed
from rlrun.plan.build import load_plan
from rlrun.runtime import inputs

PRESETS = sorted({path.stem for path in (Path(__file__).parents[2] / "conf" / "algo").glob("*.yaml")} - {"sft"})


@pytest.fixture(autouse=True)
def no_tokenizer(monkeypatch):
    monkeypatch.setattr(inputs, "load_tokenizer", lambda model_dir: None)
    monkeypatch.setattr(inputs, "_prompts", lambda plan, dataset, tokenizer: [])


@pytest.mark.parametrize("preset", PRESETS)
def test_every_shipped_algorithm_finds_what_it_is_made_of(preset):
    assert callable(inputs.load_inputs(load_plan(["+experiment=quickstart", f"algo={preset}"]), "").reward)


def test_given_responses_are_not_rewarded():
    assert inputs.load_inputs(load_plan(["+experiment=quickstart_sft"]), "").reward is None


def test_an_estimator_that_cannot_be_imported_ends_the_run_before_it_starts(tmp_path, monkeypatch):
    (tmp_path / "broken_estimator.py").write_text("import no_such_package\n\ndef mine(scored): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = load_plan(["+experiment=quickstart", "algo.advantage=broken_estimator:mine"])
    with pytest.raises(RunFailed, match="cannot load broken_estimator:mine: ModuleNotFoundError"):
        inputs.load_inputs(plan, "")
