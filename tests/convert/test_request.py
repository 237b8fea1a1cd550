"""What a conversion refuses before it imports torch, and where it looks for a Megatron checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlrun import cli
from rlrun.convert import request
from rlrun.convert.request import parse, refuse_memory, spec_of
from rlrun.convert.sources import resolve
from rlrun.errors import RlrunError
from rlrun.families import FAMILIES, hf_config
from rlrun.plan.build import load_plan


def told(call, *arguments):
    with pytest.raises(RlrunError) as raised:
        call(*arguments)
    return [(p.code, p.summary) for p in raised.value.problems]


def asked(*words, origin=None, fill_from=None, verify=False):
    return parse(words, origin, fill_from, verify)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return str(tmp_path / "source")


@pytest.mark.parametrize("words", [(), ("hf-to-megatron",), ("hf-to-mcore", "a", "b"), ("hf-to-hf", "a", "b", "c")])
def test_kind_source_and_target_are_needed(words):
    [(code, summary)] = told(asked, *words)
    assert (code, summary) == ("bad-usage", "convert takes a kind, SOURCE and TARGET")


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "notes.txt").write_text("mine")
    words = ("hf-to-megatron", str(tmp_path / "nowhere"), str(tmp_path / "target"), "tp=2", "dtype=fp8", "seed=1")
    found = told(lambda: asked(*words, origin="x"))
    assert [summary.split(":")[0] for _, summary in found] == [
        "a conversion has no tp",
        "dtype is bfloat16 or float32",
        "convert has no seed",
        "--origin belongs to megatron-to-hf",
        "SOURCE",
    ]


def test_nothing_is_overwritten(source, tmp_path):
    (tmp_path / "target").mkdir()
    assert asked("hf-to-hf", source, str(tmp_path / "target")).target == tmp_path / "target"
    (tmp_path / "target" / "notes.txt").write_text("mine")
    assert told(asked, "hf-to-hf", source, str(tmp_path / "target"))[0][0] == "target-exists"
    (tmp_path / "file").write_text("mine")
    assert told(asked, "hf-to-hf", source, str(tmp_path / "file"))[0][0] == "target-exists"
    assert told(asked, "hf-to-hf", source, str(tmp_path / "file" / "below"))[0][0] == "target-not-writable"
    assert told(asked, "hf-to-hf", source, source)[0] == ("bad-usage", "SOURCE and TARGET are the same folder")


def test_megatron_to_hf_keeps_its_type_and_checks_its_other_folders(source, tmp_path):
    target = str(tmp_path / "target")
    assert told(asked, "megatron-to-hf", source, target, "dtype=float32")[0][0] == "bad-usage"
    more = {"origin": str(tmp_path / "a"), "fill_from": str(tmp_path / "b")}
    found = told(lambda: asked("megatron-to-hf", source, target, **more))
    assert [code for code, _ in found] == ["folder-not-found", "folder-not-found"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_is_read_from_config_json(family, tmp_path):
    spec = load_plan(["+experiment=quickstart", f"model=tiny_{family}"]).model.spec
    (tmp_path / "config.json").write_text(json.dumps(hf_config(spec)))
    assert spec_of(tmp_path) == spec


def test_another_models_config_json_is_refused(tmp_path):
    assert told(spec_of, tmp_path)[0][0] == "model-not-found"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert told(spec_of, tmp_path)[0][0] == "model-unsupported"


def test_a_model_that_memory_cannot_hold_is_refused_with_what_would_do(monkeypatch):
    spec = load_plan(["+experiment=quickstart"]).model.spec
    monkeypatch.setattr(request, "_available", lambda: 2 * 2 * spec.num_parameters)
    refuse_memory(spec, 2, False)
    assert told(refuse_memory, spec, 2, True)[0][0] == "conversion-too-large"
    with pytest.raises(RlrunError) as raised:
        refuse_memory(spec, 4, False)
    assert "dtype=bfloat16" in raised.value.problems[0].hint
    monkeypatch.setattr(request, "_available", lambda: None)
    refuse_memory(spec, 4, True)


def make_run(folder, **model):
    for step in ("step_000002", "step_000010"):
        (folder / "checkpoints" / step / "megatron").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"model": model}))


def test_a_run_its_newest_checkpoint_and_any_other_are_found(tmp_path):
    make_run(tmp_path, init="random", path=None)
    (tmp_path / "model").mkdir()
    newest = tmp_path / "checkpoints" / "step_000010"
    for folder in (tmp_path, newest, newest / "megatron"):
        found = resolve(folder, None)
        assert (found.weights, found.origin) == (newest / "megatron", tmp_path / "model")
    older = tmp_path / "checkpoints" / "step_000002"
    assert resolve(older, tmp_path).weights == older / "megatron"
    assert resolve(older, tmp_path).origin == tmp_path


def test_a_checkpoint_whose_origin_is_unknown_asks_for_it(tmp_path):
    make_run(tmp_path, init="pretrained", path=str(tmp_path / "gone"))
    assert told(resolve, tmp_path, None)[0][0] == "origin-not-found"
    (tmp_path / "plan.json").unlink()
    assert told(resolve, tmp_path, None)[0][0] == "origin-not-found"
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    assert told(resolve, tmp_path / "empty", None)[0][0] == "no-checkpoint"


def test_wrong_words_cost_no_import_of_torch(tmp_path):
    code = (
        "import sys; from rlrun.cli import main; "
        f"status = main(['convert', 'hf-to-hf', '{tmp_path}/no', '{tmp_path}/t', 'tp=2']); "
        "sys.exit(status if 'torch' not in sys.modules else 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "a Megatron checkpoint loads into any layout" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--verify", "+experiment=quickstart"], "--verify belongs to convert"),
        (["resume", "--origin", "x", "run"], "--origin belongs to convert"),
        (["convert", "--origin"], "--origin needs a folder"),
        (["convert", "--json", "hf-to-hf", "a", "b"], "--json belongs to plan, diff and models"),
        (["convert", "--config-dir", "x", "hf-to-hf", "a", "b"], "a conversion reads no configuration"),
        (["models", "qwen3"], "models takes no words"),
    ],
)
def test_flags_that_a_verb_would_ignore_are_refused(arguments, words, capsys):
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err
