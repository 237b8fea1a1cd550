"""Conversions of every family: bit for bit there and back, from any layout, and nothing half done."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from convert_process import commands
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "families"))
from family_fixtures import FIXTURES

pytestmark = pytest.mark.engines

LAYOUTS = [
    ("qwen3", {"tp": 2}),
    ("qwen3", {"pp": 2}),
    ("qwen3_5_moe", {"pp": 2}),
    ("glm4", {"tp": 2}),
    ("glm4_moe", {"tp": 2, "etp": 2, "sequence_parallel": True}),
    ("glm4_moe", {"dp": 2, "ep": 2}),
    ("glm4_moe_lite", {"tp": 2, "ep": 2, "sequence_parallel": True}),
    ("minimax_m2", {"tp": 2, "etp": 2, "sequence_parallel": True}),
]


def read(folder):
    return {name: x for file in sorted(Path(folder).glob("*.safetensors")) for name, x in load_file(file).items()}


def same(found, expected):
    assert set(found) == set(expected)
    wrong = [n for n, x in expected.items() if found[n].dtype != x.dtype or not torch.equal(found[n], x)]
    assert wrong == []


@pytest.fixture(scope="session")
def fixtures(tmp_path_factory):
    from hf_process import make_references

    return make_references(tmp_path_factory.mktemp("fixtures"), FIXTURES)


@pytest.fixture(scope="session")
def converted(fixtures, tmp_path_factory):
    """name -> folder with `megatron`, `back` and `again`, and what the commands said."""
    root = tmp_path_factory.mktemp("converted")
    asked = []
    for name, reference in fixtures.items():
        source, target = reference.checkpoint, str(root / name)
        (Path(source) / "tokenizer.json").write_text("{}")
        (Path(source) / "chat_template.jinja").write_text("{{ messages }}")
        asked += [
            ["convert", "hf-to-megatron", source, f"{target}/megatron"],
            ["convert", "megatron-to-hf", f"{target}/megatron", f"{target}/back", "--verify"],
            ["convert", "hf-to-hf", source, f"{target}/again", "--verify"],
        ]
    told = commands(*asked)
    return {name: (root / name, told[3 * i : 3 * i + 3]) for i, name in enumerate(fixtures)}


@pytest.mark.parametrize("name", FIXTURES)
def test_there_and_back_is_the_same_checkpoint_bit_for_bit(fixtures, converted, name):
    """Vision tower, draft layer and indexer, which Megatron has not, too."""
    folder, told = converted[name]
    assert [code for code, _, _ in told[:2]] == [0, 0], told
    same(read(folder / "back"), fixtures[name].weights)
    for file in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert (folder / "back" / file).read_text().strip() == (
            Path(fixtures[name].checkpoint) / file
        ).read_text().strip()
    assert "bit for bit" in told[1][1]
    if FIXTURES[name].family in ("minimax_m2", "glm_moe_dsa"):  # the installed transformers computes something else
        assert "logits not compared: transformers 5.12.1 does not compute" in told[1][1]
    else:
        assert "verified: logits differ by" in told[1][1]
    assert sorted(os.listdir(folder)) == ["again", "back", "megatron"]


@pytest.mark.parametrize("name", FIXTURES)
def test_a_checkpoint_is_written_again_as_it_was_stored(fixtures, converted, name):
    folder, told = converted[name]
    assert told[2][0] == 0, told[2]
    same(read(folder / "again"), fixtures[name].weights)


def save_sharded(tensors, folder, config, count=3):
    """In several files, with an index."""
    folder.mkdir()
    names = sorted(tensors)
    weight_map = {}
    for number in range(count):
        file = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = names[number::count]
        save_file({name: tensors[name].contiguous() for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def renamed(tensors, old, new):
    return {name.replace(old, new, 1) if name.startswith(old) else name: x for name, x in tensors.items()}


def one_by_one(tensors):
    """Packed experts, stored one by one."""
    found = {}
    for name, x in tensors.items():
        base, _, kind = name.rpartition("experts.")
        if kind == "gate_up_proj":
            for e, both in enumerate(x):
                gate, up = both.chunk(2)
                found[f"{base}experts.{e}.gate_proj.weight"], found[f"{base}experts.{e}.up_proj.weight"] = gate, up
        elif kind == "down_proj":
            found |= {f"{base}experts.{e}.down_proj.weight": down for e, down in enumerate(x)}
        else:
            found[name] = x
    return found


def test_every_manner_of_storing_one_model_is_kept(fixtures, tmp_path):
    """Sharded, one by one and packed, under either prefix, with the tied head stored again; in bfloat16."""
    moe, text, dense = fixtures["qwen3_5_moe"], FIXTURES["qwen3_5_moe_text"].config, fixtures["qwen3"]
    body = {n: x for n, x in moe.weights.items() if "language_model" in n or n == "lm_head.weight"}
    packed = renamed(body, "model.language_model.", "model.")
    tied = {n: x.bfloat16() for n, x in dense.weights.items()}
    tied["lm_head.weight"] = tied["model.embed_tokens.weight"].clone()
    cases = {
        "single": (one_by_one(packed), text),
        "packed": (packed, text),
        "other": (packed, moe.fixture.config),
        "tied": (tied, dense.fixture.config),
    }
    asked = []
    for name, (tensors, config) in cases.items():
        source = str(save_sharded(tensors, tmp_path / name, config))
        asked += [
            ["convert", "hf-to-megatron", source, str(tmp_path / f"{name}_mg"), "--verify"],
            ["convert", "megatron-to-hf", str(tmp_path / f"{name}_mg"), str(tmp_path / f"{name}_back")],
        ]
    told = dict(zip(cases, commands(*asked)[::2], strict=True))
    for name, (code, out, err) in told.items():
        assert code == 0, err
        lost = name == "other"  # the vision-language class of transformers wants the other prefix
        assert ("logits not compared: transformers does not find" if lost else "verified: logits differ") in out
    for name, (tensors, _) in cases.items():
        same(read(tmp_path / f"{name}_back"), tensors)
    assert json.loads((tmp_path / "tied_back" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def quantise(tensors, block, chosen):
    """FP8 with a scale a block, and what each stands for, one block after the other."""
    stored, meant = {}, {}
    for name, x in tensors.items():
        if not chosen(name):
            stored[name] = meant[name] = x
            continue
        rows, columns = x.shape
        scales = torch.zeros(math.ceil(rows / block[0]), math.ceil(columns / block[1]))
        values, wide = torch.zeros_like(x, dtype=torch.float8_e4m3fn), torch.zeros_like(x)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                part = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
                scales[i, j] = x[part].abs().max() / 448
                values[part] = (x[part] / scales[i, j]).to(torch.float8_e4m3fn)
                wide[part] = values[part].float() * scales[i, j]
        stored[name], stored[f"{name}_scale_inv"], meant[name] = values, scales, wide
    return stored, meant


@pytest.mark.parametrize("name", ["minimax_m2", "glm4_moe"])
def test_fp8_blocks_are_dequantised_exactly_and_config_json_says_no_more(fixtures, tmp_path, name):
    """Blocks that divide no size; the draft layer of glm4_moe is FP8 too."""
    block, reference = (24, 40), fixtures[name]
    stored, meant = quantise(
        reference.weights, block, lambda n: n.endswith(".weight") and reference.weights[n].dim() == 2 and "layers" in n
    )
    config = dict(reference.fixture.config)
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": list(block)}
    source = str(save_sharded(stored, tmp_path / "source", config))
    told = commands(
        ["convert", "hf-to-megatron", source, str(tmp_path / "mg"), "--verify"],
        ["convert", "megatron-to-hf", str(tmp_path / "mg"), str(tmp_path / "back")],
        ["convert", "hf-to-hf", source, str(tmp_path / "bf16"), "dtype=bfloat16", "--verify"],
    )
    assert [code for code, _, _ in told] == [0, 0, 0], told
    same(read(tmp_path / "back"), meant)
    biases = [n for n in meant if n.endswith("correction_bias")]
    same(
        {n: x for n, x in read(tmp_path / "bf16").items() if "layers.3" not in n},
        {n: x if n in biases else x.bfloat16() for n, x in meant.items() if "layers.3" not in n},
    )
    for folder in ("back", "bf16"):
        assert "quantization_config" not in json.loads((tmp_path / folder / "config.json").read_text())


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_a_run_of_any_layout_is_converted_and_its_conversion_loads_into_it(ranks, fixtures, tmp_path, name, layout):
    from megatron_plans import make_plan

    from rlrun.plan.model_spec import spec_from_directory

    reference = fixtures[name]
    spec = spec_from_directory(reference.checkpoint, reference.fixture.family)
    stages = {} if spec.num_layers % layout.get("pp", 1) == 0 else {"stage_layers": (2, 1)}
    plan = make_plan(spec=spec, uses_reference=False, distributed_optimizer=False, **layout, **stages)
    world = plan.train.tp * plan.train.pp * plan.train.dp
    run = tmp_path / "run"
    saved = run / "checkpoints" / "step_000003" / "megatron"
    saved.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"model": {"init": "pretrained", "path": reference.checkpoint}}))
    held = ranks.run(world, "save_changed", plan, reference.checkpoint, str(saved))[0]
    told = commands(
        ["convert", "megatron-to-hf", str(run), str(tmp_path / "hf"), "--verify"],
        ["convert", "hf-to-megatron", str(tmp_path / "hf"), str(tmp_path / "mg")],
    )
    assert [code for code, _, _ in told] == [0, 0], told
    back = one_by_one(read(tmp_path / "hf"))
    changed = [n for n, x in held.items() if not np.array_equal(x, one_by_one(reference.weights)[n].numpy())]
    assert len(changed) > len(held) / 2
    assert [n for n, x in held.items() if not np.array_equal(back[n].numpy(), x)] == []
    assert {n for n in back if n not in held} == {n for n in one_by_one(reference.weights) if n not in held}
    loaded = ranks.run(world, "load_converted", plan, reference.checkpoint, str(tmp_path / "mg" / "megatron"))[0]
    assert [n for n, x in held.items() if not np.array_equal(loaded[n], x)] == []


def test_types_that_change_are_told_or_have_to_be_chosen(fixtures, tmp_path):
    """A router in float32 among bfloat16, and float16."""
    reference = fixtures["glm4_moe"]
    router = [n for n in reference.weights if n.endswith("mlp.gate.weight") and "layers.3" not in n]
    mixed = {n: x if n in router or "correction_bias" in n else x.bfloat16() for n, x in reference.weights.items()}
    half = {n: x.half() for n, x in reference.weights.items()}
    source = save_sharded(mixed, tmp_path / "mixed", reference.fixture.config)
    save_sharded(half, tmp_path / "half", reference.fixture.config)
    told = commands(
        ["convert", "hf-to-megatron", str(source), str(tmp_path / "a")],
        ["convert", "hf-to-hf", str(tmp_path / "half"), str(tmp_path / "b")],
        ["convert", "hf-to-hf", str(tmp_path / "half"), str(tmp_path / "b"), "dtype=float32"],
    )
    assert [code for code, _, _ in told] == [0, 2, 0], told
    assert "2 tensors are stored in float32 and become bfloat16: model.layers.1.mlp.gate.weight" in told[0][1]
    assert "[weights-other-type]" in told[1][2]
    exact = read(tmp_path / "b")
    assert all(torch.equal(exact[n], x.float()) for n, x in half.items() if "layers.3" not in n)


def test_what_is_not_trained_can_come_from_another_folder(fixtures, converted, tmp_path):
    """The weights of a Megatron checkpoint alone, and a folder with nothing but config.json."""
    reference = fixtures["qwen3_5_moe"]
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(Path(reference.checkpoint) / "config.json", bare)
    words = ["convert", "megatron-to-hf", str(converted["qwen3_5_moe"][0] / "megatron" / "megatron")]
    told = commands(
        [*words, str(tmp_path / "alone"), "--origin", str(bare)],
        [*words, str(tmp_path / "full"), "--origin", str(bare), "--fill-missing-from", reference.checkpoint],
        [*words, str(tmp_path / "lost")],
    )
    assert [code for code, _, _ in told] == [0, 0, 2], told
    assert "add --fill-missing-from DIR" in told[0][1]
    assert "62 tensors that are not trained are from" in told[1][1]
    assert "[origin-not-found]" in told[2][2]
    trained = {n: x for n, x in reference.weights.items() if "visual" not in n and not n.startswith("mtp.")}
    same(read(tmp_path / "alone"), trained)
    same(read(tmp_path / "full"), reference.weights)


def test_a_vocabulary_that_tensor_parallelism_has_padded_is_cut_again(ranks, checkpoints, tmp_path):
    from megatron_plans import make_plan

    plan = make_plan(tied=False, tp=2, uses_reference=False)
    (tmp_path / "saved").mkdir()
    held = ranks.run(2, "save_changed", plan, checkpoints["untied"], str(tmp_path / "saved"))[0]
    words = ["convert", "megatron-to-hf", str(tmp_path / "saved"), str(tmp_path / "hf"), "--origin"]
    [(code, _, err)] = commands([*words, checkpoints["untied"]])
    assert code == 0, err
    found = read(tmp_path / "hf")
    assert found["lm_head.weight"].shape == (99, 32)
    assert [n for n, x in held.items() if not np.array_equal(found[n].numpy(), x)] == []


def test_damaged_and_foreign_checkpoints_are_refused_and_nothing_is_written(fixtures, converted, tmp_path):
    reference = fixtures["glm4_moe"]
    weights, config = reference.weights, dict(reference.fixture.config)
    spoilt = {name: save_sharded(weights, tmp_path / name, config) for name in ("cut", "gone", "liar")}
    shards = sorted(spoilt["cut"].glob("*.safetensors"))
    os.truncate(shards[1], shards[1].stat().st_size - 1)
    sorted(spoilt["gone"].glob("*.safetensors"))[0].unlink()
    index = spoilt["liar"] / "model.safetensors.index.json"
    lies = json.loads(index.read_text())
    lies["weight_map"] |= {
        "model.norm.weight": "model-00001-of-00003.safetensors",
        "x": "model-00002-of-00003.safetensors",
    }
    index.write_text(json.dumps(lies))
    less = {n: x for n, x in weights.items() if n != "model.layers.1.mlp.experts.3.up_proj.weight"}
    spoilt["names"] = save_sharded(less | {"model.layers.0.odd": torch.ones(2)}, tmp_path / "names", config)
    spoilt["config"] = save_sharded(
        weights, tmp_path / "config", config | {"n_routed_experts": 4, "intermediate_size": 64}
    )
    mg = {}
    for name in ("distcp", "lost", "other"):
        mg[name] = tmp_path / f"mg_{name}"
        shutil.copytree(converted["glm4_moe"][0] / "megatron", mg[name])
    parts = sorted((mg["distcp"] / "megatron").glob("*.distcp"))
    os.truncate(parts[0], parts[0].stat().st_size - 1)
    sorted((mg["lost"] / "megatron").glob("*.distcp"))[0].unlink()
    target = str(tmp_path / "target")
    kinds = ("hf-to-megatron", "hf-to-hf")
    told = commands(
        *(["convert", kind, str(folder), target] for folder in spoilt.values() for kind in kinds),
        *(["convert", "megatron-to-hf", str(mg[name]), target] for name in ("distcp", "lost")),
        ["convert", "megatron-to-hf", str(mg["other"]), target, "--origin", fixtures["glm4_moe_air"].checkpoint],
        ["convert", "megatron-to-hf", str(mg["other"]), target, "--origin", fixtures["qwen3"].checkpoint],
    )
    expected = {
        "cut": ["[weights-unreadable]", "model-00002-of-00003.safetensors is cut short"],
        "gone": ["[weights-unreadable]", "it lacks model-00001-of-00003.safetensors"],
        "liar": [
            "model-00001-of-00003.safetensors has no model.norm.weight",
            "model-00002-of-00003.safetensors has no x",
        ],
        "names": [
            "lacks model.layers.1.mlp.experts.3.up_proj.weight",
            "has model.layers.0.odd, which glm4_moe has not",
        ],
        "config": ["[weights-unexpected]", "[weights-shape]", "expected [64, 64]"],
    }
    words = [w for name in spoilt for w in [expected[name]] * 2]
    words += [["[megatron-unreadable]", "is cut short"], ["[megatron-unreadable]", "is missing"]]
    # GLM-4.5-Air has no query and key norms: what a checkpoint has beyond the model is refused as well.
    words += [["[weights-unexpected]", "q_layernorm", "--origin"], ["[weights-missing]", "--origin"]]
    for (code, out, err), said in zip(told, words, strict=True):
        assert (code, out) == (2, ""), err
        assert all(word in " ".join(err.split()) for word in said), err
    assert not [p.name for p in tmp_path.iterdir() if "target" in p.name]


def test_what_goes_wrong_while_writing_or_verifying_leaves_nothing(fixtures, converted, tmp_path):
    source, target = fixtures["qwen3_moe"].checkpoint, str(tmp_path / "target")
    there = str(converted["qwen3_moe"][0] / "megatron")
    told = commands(
        (["convert", "hf-to-hf", source, target, "--verify"], "bit"),
        (["convert", "megatron-to-hf", there, target, "--verify"], "bit"),
        (["convert", "megatron-to-hf", there, target, "--verify"], "logits"),
        (["convert", "hf-to-hf", source, target], "disk"),
        (["convert", "hf-to-megatron", source, target], "disk"),
    )
    words = ["changed", "changed", "logits differ by 5.0e-01", "writing", "failed"]
    for (code, out, err), word in zip(told, words, strict=True):
        assert (code, out) == (1, ""), err
        assert word in err
        assert "Traceback" not in err
    assert os.listdir(tmp_path) == []


def test_a_reference_that_fails_is_no_failure_of_the_conversion(converted, tmp_path):
    there = str(converted["qwen3"][0] / "megatron")
    [(code, out, _)] = commands((["convert", "megatron-to-hf", there, str(tmp_path / "t"), "--verify"], "reference"))
    assert code == 0
    assert "logits not compared: transformers cannot compute it (RuntimeError: no kernel)" in out


def test_a_conversion_that_is_killed_leaves_nothing_that_looks_like_a_checkpoint(fixtures, tmp_path):
    source, target = fixtures["qwen3_moe"].checkpoint, tmp_path / "target"
    code = (
        "import time, sys\n"
        "from rlrun.backends.megatron.safetensors_file import SafetensorsFile\n"
        "write, count = SafetensorsFile.write, []\n"
        "def slowly(self, *words):\n"
        "    write(self, *words); count.append(1)\n"
        "    if len(count) == 30: print('half', flush=True); time.sleep(60)\n"
        "SafetensorsFile.write = slowly\n"
        "from rlrun.cli import main\n"
        f"main(['convert', 'hf-to-hf', {source!r}, {str(target)!r}])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == []
    [left] = tmp_path.iterdir()
    assert not (left / "config.json").exists()
    [(status, _, err)] = commands(["convert", "hf-to-hf", source, str(target)])
    assert status == 0
    assert f"an earlier conversion was cut off: {left} can be deleted" in err
    same(read(target), fixtures["qwen3_moe"].weights)
