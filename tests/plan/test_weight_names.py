"""Where tensors lie in files of every layout, and what is said of those that do not fit."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from rlrun.config.shipped import shipped
from rlrun.families import FAMILIES, hf_shapes
from rlrun.plan.build import load_plan
from rlrun.plan.model_spec import is_block_fp8
from rlrun.plan.weight_files import Stored
from rlrun.plan.weight_names import account, block_size, is_fp8, problems

QWEN3_5 = "model.language_model."


def spec_of(family):
    return load_plan(["+experiment=quickstart", f"model=tiny_{family}"]).model.spec


def stored(shapes, dtype="BF16"):
    return {name: Stored(tuple(shape), dtype, "a.safetensors") for name, shape in shapes.items()}


def packed(shapes, experts):
    """Experts of a layer in one tensor."""
    found = {}
    for name, shape in shapes.items():
        if ".experts." not in name:
            found[name] = shape
        elif "up_proj" in name:
            base = name.split(".experts.")[0]
            found[f"{base}.experts.gate_up_proj"] = (experts, 2 * shape[0], shape[1])
        elif "down_proj" in name:
            found[name.split(".experts.")[0] + ".experts.down_proj"] = (experts, *shape)
    return found


def codes(found, spec):
    return [p.code for p in problems(found, "m", spec, "hint")]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_whole_as_it_is_named(family):
    spec = spec_of(family)
    found = account(stored(hf_shapes(spec)), spec)
    assert codes(found, spec) == []
    assert {name: source.name for name, source in found.sources.items()} == {n: n for n in hf_shapes(spec)}


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_5_moe", "glm4_moe"])
def test_packed_experts_are_slices_of_one_tensor(family):
    spec = spec_of(family)
    shapes = packed(hf_shapes(spec), spec.moe.num_experts)
    assert len(shapes) < len(hf_shapes(spec))
    found = account(stored(shapes), spec)
    assert codes(found, spec) == []
    name = next(n for n in hf_shapes(spec) if ".experts.3.up_proj" in n)
    source, width = found.sources[name], spec.moe.ffn_hidden_size
    assert (source.name, source.expert) == (name.replace("3.up_proj.weight", "gate_up_proj"), 3)
    assert source.rows == (width, 2 * width)


def test_a_packed_tensor_with_another_number_of_experts_is_named_once():
    spec = spec_of("qwen3_moe")
    found = account(stored(packed(hf_shapes(spec), spec.moe.num_experts + 1)), spec)
    assert codes(found, spec) == ["weights-shape"] * 2 * spec.num_layers
    assert len(found.misshapen) == 2 * spec.num_layers


@pytest.mark.parametrize(("family", "old", "new"), [("qwen3", "model.", QWEN3_5), ("qwen3_5", QWEN3_5, "model.")])
def test_a_text_model_is_found_under_either_prefix(family, old, new):
    spec = spec_of(family)
    found = account(stored({name.replace(old, new, 1): shape for name, shape in hf_shapes(spec).items()}), spec)
    assert codes(found, spec) == []
    assert found.sources[f"{old}norm.weight"].name == f"{new}norm.weight"


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("glm4_moe", ["model.layers.{layers}.eh_proj.weight", "model.layers.{layers}.embed_tokens.weight"]),
        ("qwen3_5", ["model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight"]),
        ("glm_moe_dsa", ["model.layers.1.self_attn.indexer.wk.weight"]),
        ("qwen3", ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_what_the_family_does_not_train_is_set_aside(family, extra):
    spec = spec_of(family)
    names = [name.format(layers=spec.num_layers) for name in extra]
    found = account(stored(hf_shapes(spec) | dict.fromkeys(names, (7,))), spec)
    assert codes(found, spec) == []
    assert sorted(found.untrained) == sorted(names)


def test_what_another_family_does_not_train_is_unexpected():
    spec = spec_of("qwen3")
    names = ["mtp.fc.weight", f"model.layers.{spec.num_layers}.eh_proj.weight"]
    found = account(stored(hf_shapes(spec) | dict.fromkeys(names, (7,))), spec)
    assert list(found.unexpected) == sorted(names)


def fp8(shapes, block, but=()):
    found = {}
    for name, shape in shapes.items():
        quantised = "proj." in name or ".experts." in name
        found[name] = Stored(shape, "F8_E4M3" if quantised else "BF16", "a.safetensors")
        if quantised and name not in but:
            scales = tuple(math.ceil(size / b) for size, b in zip(shape, block, strict=True))
            found[f"{name}_scale_inv"] = Stored(scales, "F32", "a.safetensors")
    return found


def test_fp8_with_a_scale_for_each_block_is_read_and_scales_are_no_tensors_of_their_own():
    spec = spec_of("minimax_m2")
    found = account(fp8(hf_shapes(spec), (128, 128)), spec)
    assert codes(found, spec) == []
    name = "model.layers.0.block_sparse_moe.experts.0.w1.weight"
    assert found.sources[name].scale == f"{name}_scale_inv"
    assert found.sources["model.norm.weight"].scale is None


def test_fp8_that_is_scaled_otherwise_is_refused():
    spec = spec_of("minimax_m2")
    first = "model.layers.0.self_attn.q_proj.weight"
    without = account(fp8(hf_shapes(spec), (128, 128), but=(first,)), spec)
    assert [name for name, _ in without.unreadable] == [first]
    assert codes(without, spec) == ["weights-quantised"]
    other = account(fp8(hf_shapes(spec), (64, 64)), spec)
    assert "has scales [2, 2], and blocks of 128x128 make [1, 1]" in dict(other.unreadable)[first]
    assert codes(account(fp8(hf_shapes(spec), (64, 64)), spec, (64, 64)), spec) == []
    lone = stored(hf_shapes(spec)) | stored({f"{first}_scale_inv": (1, 1)})
    assert account(lone, spec).unexpected == (f"{first}_scale_inv",)
    whole_numbers = stored(hf_shapes(spec), "I8")
    assert codes(account(whole_numbers, spec), spec) == ["weights-quantised"]


def test_a_stored_copy_of_a_tied_head_is_no_surprise():
    spec = replace(spec_of("qwen3"), tied_embeddings=True)
    copy = stored({"lm_head.weight": (spec.vocab_size, spec.hidden_size)})
    found = account(stored(hf_shapes(spec)) | copy, spec)
    assert (codes(found, spec), found.tied_head) == ([], "lm_head.weight")


def test_the_block_is_what_config_json_says(tmp_path):
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}}
    for written in (config, {"text_config": config}):
        (tmp_path / "config.json").write_text(json.dumps(written))
        assert (is_fp8(tmp_path), block_size(tmp_path)) == (True, (64, 32))
    (tmp_path / "config.json").write_text("{}")
    assert (is_fp8(tmp_path), block_size(tmp_path)) == (False, (128, 128))
    assert is_block_fp8({"quant_method": "fp8"})
    assert not is_block_fp8({"quant_method": "gptq", "weight_block_size": [128, 128]})
    assert not is_block_fp8({"quant_method": "fp8", "weight_block_size": None})


def test_a_real_size_is_judged_quickly():
    """GLM-5 has 58,000 tensors."""
    import time

    import yaml

    from rlrun.plan.model_spec import make_spec

    text = yaml.safe_load((shipped("conf") / "model" / "glm5.yaml").read_text())
    spec = make_spec("glm_moe_dsa", text["architecture"])
    files = stored(hf_shapes(spec))
    began = time.process_time()
    assert codes(account(files, spec), spec) == []
    assert time.process_time() - began < 3
