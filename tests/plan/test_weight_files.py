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
from rlrun.plan.weight_files import _ranges, absent_parts, only_described, read_weight_files, trained

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


def test_another_number_of_parameters_is_refused_with_both_numbers(tmp_path):
    describe(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", SHAPES | {"model.layers.4.mlp.up_proj.weight": (96, 64)})
    [(code, summary)] = problems(tmp_path)
    assert code == "checkpoint-unexpected-size"
    assert f"{SPEC.num_parameters + 6144:,} parameters" in summary
    assert f"{SPEC.num_parameters:,} (+6,144)" in summary


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


def test_what_is_not_trained_does_not_count():
    tied = make_spec("qwen3", ARCHITECTURE | {"tie_word_embeddings": True})
    sizes = {
        "model.visual.blocks.0.attn.qkv.weight": 7,
        "mtp.layers.0.mlp.up_proj.weight": 7,
        "model.layers.0.mlp.gate.e_score_correction_bias": 7,
        "model.layers.0.self_attn.rotary_emb.inv_freq": 7,
        "model.layers.0.mlp.up_proj.weight_scale_inv": 7,
        "lm_head.weight": 7,
    }
    assert trained(sizes, tied) == {}
    assert set(trained(sizes, SPEC)) == {"lm_head.weight"}
    draft = {"model.layers.4.embed_tokens.weight": 7, "model.layers.4.eh_proj.weight": 7}
    assert trained(draft, SPEC) == draft  # Qwen3 has no draft layer
    spec = load_plan(["+experiment=qwen3_grpo", "placement=cpu_1", "model=glm4_5_air"]).model.spec
    assert trained({"model.layers.46.eh_proj.weight": 7, "model.layers.45.mlp.gate.weight": 3}, spec) == {
        "model.layers.45.mlp.gate.weight": 3
    }


@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_the_parts_are_found_under_either_prefix(prefix):
    names = {name.replace("model.", prefix, 1): 1 for name in SHAPES}
    assert absent_parts(names, SPEC) == []


def test_the_headers_of_a_file_are_read_again_when_it_has_changed(tmp_path):
    file = tmp_path / "model.safetensors"
    for count in (3, 4):
        write_safetensors(file, {"x": (count, 2)})
        assert [read_weight_files(tmp_path).sizes["x"] for _ in range(2)] == [2 * count] * 2


def test_ranges_are_written_as_people_do():
    assert _ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
