"""Checkpoints whose files are cut, lack tensors or belong to another model are refused from their headers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.limits import limits
from rlrun.plan.model_spec import make_spec
from rlrun.plan.weight_files import Stored, only_described, read_weight_files
from rlrun.plan.weight_names import _ranges, absent_parts, account

sys.path.insert(0, str(Path(__file__).parent))
from weights_on_disk import qwen3_shapes, write_safetensors, write_shards

ARCHITECTURE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
SPEC = make_spec("qwen3", ARCHITECTURE)
SHAPES = qwen3_shapes(SPEC)
FIRST = {name: shape for name, shape in SHAPES.items() if "layers.2." not in name and "layers.3." not in name}
SECOND = {name: shape for name, shape in SHAPES.items() if name not in FIRST}


def describe(folder: Path, **changes: object) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", **ARCHITECTURE, **changes}))
    (folder / "tokenizer.json").write_text("{}")


def problems(folder: Path) -> list[tuple[str, str]]:
    shape = ", ".join(f"{name}: {json.dumps(ARCHITECTURE[name])}" for name in ARCHITECTURE)
    model = f"{{name: m, family: qwen3, path: {folder}, architecture: {{{shape}}}}}"
    try:
        load_plan(["+experiment=qwen3_grpo", "placement=cpu_1", "~model", f"model={model}"])
    except RlrunError as e:
        return [(p.code, p.summary) for p in e.problems]
    return []


def test_whole_checkpoints_plan_in_one_file_and_in_several(tmp_path):
    describe(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", SHAPES)
    assert problems(tmp_path) == []
    (tmp_path / "model.safetensors").unlink()
    write_shards(tmp_path, {"a.safetensors": FIRST, "b.safetensors": SECOND})
    assert problems(tmp_path) == []


@pytest.mark.parametrize("cut", [1, 1000])
def test_a_file_that_is_cut_short_is_named_with_both_sizes(tmp_path, cut):
    describe(tmp_path)
    write_shards(tmp_path, {"a.safetensors": FIRST, "b.safetensors": SECOND})
    write_safetensors(tmp_path / "b.safetensors", SECOND, cut=cut)
    size = (tmp_path / "b.safetensors").stat().st_size
    [(code, summary)] = problems(tmp_path)
    assert code == "checkpoint-incomplete"
    assert f"b.safetensors is cut short: {size:,} of {size + cut:,} bytes" in summary


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cut short at 0 bytes"),
        (b"\x80\x00\x00\x00\x00\x00\x00\x00{", "cut short at 9 bytes, within its header"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is no safetensors file"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00[]", "its header cannot be read"),
        (b'\x0d\x00\x00\x00\x00\x00\x00\x00{"a":{"b":3}}', "its header cannot be read"),
    ],
)
def test_what_is_no_safetensors_file_is_said_to_be_none(tmp_path, content, words):
    describe(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    [(code, summary)] = problems(tmp_path)
    assert (code, words in summary) == ("checkpoint-incomplete", True), summary


def test_a_tensor_that_the_index_places_in_a_file_has_to_be_there(tmp_path):
    describe(tmp_path)
    write_shards(tmp_path, {"a.safetensors": FIRST, "b.safetensors": SECOND})
    write_safetensors(tmp_path / "b.safetensors", dict(list(SECOND.items())[2:]))
    [(code, summary)] = problems(tmp_path)
    assert code == "checkpoint-incomplete"
    assert "and 1 more, which the index places there" in summary


def test_layers_and_parts_without_any_tensor_are_named(tmp_path):
    describe(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", FIRST | {"model.layers.3.input_layernorm.weight": (64,)})
    [(code, summary)] = problems(tmp_path)
    assert (code, summary.endswith("have no layer 2")) == ("checkpoint-incomplete", True)
    write_safetensors(tmp_path / "model.safetensors", {n: s for n, s in FIRST.items() if "lm_head" not in n})
    [(code, summary)] = problems(tmp_path)
    assert summary.endswith("have no lm_head.weight, layers 2-3")


def test_tensors_of_another_model_are_named_as_the_trainer_names_them(tmp_path):
    describe(tmp_path)
    spoilt = SHAPES | {"model.layers.4.mlp.up_proj.weight": (96, 64), "model.norm.weight": (63,)}
    del spoilt["model.layers.1.mlp.up_proj.weight"]
    write_safetensors(tmp_path / "model.safetensors", spoilt)
    folder = tmp_path.name
    assert problems(tmp_path) == [
        ("weights-missing", f"{folder} lacks model.layers.1.mlp.up_proj.weight"),
        ("weights-unexpected", f"{folder} has model.layers.4.mlp.up_proj.weight, which qwen3 has not"),
        ("weights-shape", f"model.norm.weight in {folder} is [63], expected [64]"),
    ]


def test_a_file_that_is_longer_than_its_header_says_is_damaged(tmp_path):
    describe(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", SHAPES)
    with open(tmp_path / "model.safetensors", "ab") as file:
        file.write(b"more")
    [(code, summary)] = problems(tmp_path)
    assert (code, "is longer than its header says" in summary) == ("checkpoint-incomplete", True), summary


def test_files_without_an_index_that_share_a_tensor_are_damaged(tmp_path):
    describe(tmp_path)
    write_safetensors(tmp_path / "a.safetensors", FIRST)
    write_safetensors(tmp_path / "b.safetensors", SECOND | {"model.norm.weight": (64,)})
    [(code, summary)] = problems(tmp_path)
    assert code == "checkpoint-incomplete"
    assert "b.safetensors has model.norm.weight, which a.safetensors has too" in summary


def test_a_missing_file_is_told_once(tmp_path):
    describe(tmp_path)
    write_shards(tmp_path, {"a.safetensors": FIRST, "b.safetensors": SECOND})
    (tmp_path / "b.safetensors").unlink()
    assert [code for code, _ in problems(tmp_path)] == ["model-incomplete"]


def test_a_folder_with_config_json_alone_can_be_planned_and_says_that_it_cannot_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **ARCHITECTURE}))
    assert only_described(tmp_path)
    assert problems(tmp_path) == []
    words = ["+experiment=quickstart", "model.init=pretrained", "model.alphabet=null", f"model.path={tmp_path}"]
    plan = load_plan(
        [*words, *(f"model.architecture.{key}={json.dumps(value)}" for key, value in ARCHITECTURE.items())]
    )
    assert [limit.code for limit in limits(plan)] == ["weights-not-here"]


def test_the_headers_of_a_file_are_read_again_when_it_has_changed(tmp_path):
    file = tmp_path / "model.safetensors"
    for count in (3, 4):
        write_safetensors(file, {"x": (count, 2)})
        assert [read_weight_files(tmp_path).tensors["x"].size for _ in range(2)] == [2 * count] * 2


def test_parts_are_absent_only_when_nothing_of_them_is_there():
    stored = {name: Stored(shape, "BF16", "a") for name, shape in FIRST.items()}
    found = account(stored | {"model.layers.3.mlp.up_proj.weight": Stored((96, 64), "BF16", "a")}, SPEC)
    assert absent_parts(found, SPEC) == ["layer 2"]


def test_ranges_are_written_as_people_do():
    assert _ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
