"""Hugging Face checkpoints: what is refused on reading, and that transformers reads what is written."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_plans import SPEC, make_plan

pytestmark = pytest.mark.engines


def edited(source, target, edit):
    """A copy of a checkpoint after `edit(tensors)`."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    edit(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, target / "model.safetensors", metadata={"format": "pt"})
    return str(target)


def check(directory, spec):
    from rlrun.backends.megatron.hf_reader import HfWeights, check
    from rlrun.errors import RlrunError

    try:
        with HfWeights(directory, spec) as weights:
            check(weights)
    except RlrunError as error:
        return [(p.code, p.summary) for p in error.problems]
    return []


def test_every_tensor_that_is_wrong_is_reported_at_once_and_on_every_rank(ranks, checkpoints, tmp_path):
    def spoil(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["model.norm.weight"] = torch.ones(31)

    directory = edited(checkpoints["untied"], tmp_path / "spoilt", spoil)
    expected = [
        ("weights-missing", f"{directory} lacks model.layers.1.mlp.up_proj.weight"),
        ("weights-unexpected", f"{directory} has model.layers.0.self_attn.q_proj.bias, which qwen3 has not"),
        ("weights-shape", f"model.norm.weight in {directory} is [31], expected [32]"),
    ]
    results = ranks.run(2, "start_error", make_plan(tied=False, tp=2), directory)
    assert results == [expected, expected]


def test_a_tied_checkpoint_may_store_the_head_again_but_not_another_head(checkpoints, tmp_path):
    spec = replace(SPEC, tied_embeddings=True)

    def repeat(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def differ(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    assert check(edited(checkpoints["tied"], tmp_path / "same", repeat), spec) == []
    (problem,) = check(edited(checkpoints["tied"], tmp_path / "other", differ), spec)
    assert problem[0] == "weights-tied-differ"


def test_an_untied_model_from_a_tied_checkpoint_lacks_its_head(checkpoints):
    (problem,) = check(checkpoints["tied"], replace(SPEC, tied_embeddings=False))
    assert problem[0] == "weights-missing"
    assert "lm_head.weight" in problem[1]


@pytest.mark.parametrize("content", [None, b"not safetensors"])
def test_missing_and_broken_files_are_named(tmp_path, content):
    from rlrun.backends.megatron.hf_reader import stored_tensors
    from rlrun.errors import RlrunError

    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(RlrunError) as raised:
        stored_tensors(str(tmp_path))
    (problem,) = raised.value.problems
    assert problem.code == ("weights-not-found" if content is None else "weights-unreadable")
    assert str(tmp_path) in problem.summary


@pytest.mark.parametrize(
    ("name", "layout"), [("tied", {}), ("tied", {"pp": 2}), ("untied", {"tp": 2}), ("untied", {"dtype": "bfloat16"})]
)
def test_transformers_reads_an_export_and_computes_the_same_logits(ranks, checkpoints, tmp_path, name, layout):
    from megatron_reference import AutoModelForCausalLM

    plan = make_plan(tied=name == "tied", uses_reference=False, **layout)
    target = tmp_path / "hf"
    ranks.run(plan.train.tp * plan.train.pp, "export_hf", plan, checkpoints[name], str(target))
    assert (target / "tokenizer.json").is_file()
    config = json.loads((target / "config.json").read_text())
    assert plan.model.dtype in (config.get("dtype"), config.get("torch_dtype"))
    dtype = getattr(torch, plan.model.dtype)
    original = AutoModelForCausalLM.from_pretrained(checkpoints[name], dtype=dtype).eval()
    copy = AutoModelForCausalLM.from_pretrained(target, dtype="auto").eval()
    assert copy.dtype == dtype
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(original(input_ids=ids).logits, copy(input_ids=ids).logits)


def test_a_large_export_is_cut_into_shards_with_an_index_that_loads(checkpoints, tmp_path):
    from megatron_reference import load

    from rlrun.backends.megatron.hf_reader import HfWeights
    from rlrun.backends.megatron.hf_writer import write_hf
    from rlrun.backends.megatron.mapping import expected_names

    spec = replace(SPEC, tied_embeddings=False)
    with HfWeights(checkpoints["untied"], spec) as weights:
        named = [(name, weights.tensor(name)) for name in expected_names(spec)]
    target = tmp_path / "hf"
    write_hf(iter(named), spec, torch.float32, checkpoints["untied"], str(target), max_shard_bytes=20_000)
    files = sorted(p.name for p in Path(target).glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for _, t in named)
    assert check(str(target), spec) == []
    copy = load(str(target))
    for name, parameter in load(checkpoints["untied"]).named_parameters():
        assert torch.equal(copy.get_parameter(name), parameter)


@pytest.mark.parametrize("packed", [False, True])
def test_shards_are_no_larger_than_they_may_be_unless_one_tensor_is(tmp_path, packed):
    """Experts come one by one, whatever holds them; tensors that are not trained fill the last shards."""
    from safetensors.torch import load_file, save_file

    from rlrun.backends.megatron.hf_writer import Style, write_hf
    from rlrun.families import hf_shapes
    from rlrun.plan.build import load_plan

    spec = load_plan(["+experiment=quickstart", "model=tiny_qwen3_5_moe"]).model.spec
    named = {name: torch.randn(shape).bfloat16() for name, shape in hf_shapes(spec).items()}
    kept = {name: named[name].float() for name in named if name.endswith(("A_log", "dt_bias"))}
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "config.json").write_text("{}")
    extra = {f"model.visual.{i}.weight": torch.randn(50, 10) for i in range(10)}
    save_file(extra, source / "model.safetensors")
    limit = 100_000
    style = Style(packed, "model.language_model.")
    write_hf(iter((named | kept).items()), spec, torch.bfloat16, str(source), str(target), limit, style)
    files = {file.name: load_file(file) for file in sorted(target.glob("*.safetensors"))}
    sizes = {name: [x.nbytes for x in tensors.values()] for name, tensors in files.items()}
    assert len(files) > 5
    assert all(sum(each) <= limit or len(each) == 1 for each in sizes.values())
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(sum(each) for each in sizes.values())
    assert index["weight_map"] == {name: file for file, tensors in files.items() for name in tensors}
    merged = {name: x for tensors in files.values() for name, x in tensors.items()}
    assert all(torch.equal(merged[name], x) for name, x in extra.items())
    assert all(torch.equal(merged[name], x) for name, x in kept.items())
    expert = "model.language_model.layers.0.mlp.experts."
    assert (f"{expert}gate_up_proj" in merged) == packed
    if packed:
        both = torch.cat([named[f"{expert}5.gate_proj.weight"], named[f"{expert}5.up_proj.weight"]])
        assert torch.equal(merged[f"{expert}gate_up_proj"][5], both)


def test_what_takes_longer_than_two_seconds_says_so(monkeypatch):
    import io

    from rlrun.backends.megatron import slow

    clock = iter([0.0, 1.0, 3.0, 4.0, 14.0, 15.0])
    monkeypatch.setattr(slow.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    line = slow.Slow("reading here", 4 * 10**9, stream)
    for _ in range(4):
        line.add(10**9)
    line.end()
    assert stream.getvalue().splitlines() == [
        "reading here: 2.0 of 4.0 GB, left 3.0 s",
        "reading here: 4.0 of 4.0 GB, left 0.0 s",
        "reading here: 4.0 GB in 15 s",
    ]


def test_what_is_quick_says_nothing():
    import io

    from rlrun.backends.megatron.slow import Slow

    stream = io.StringIO()
    line = Slow("reading here", 10, stream)
    line.add(10)
    line.end()
    assert stream.getvalue() == ""
