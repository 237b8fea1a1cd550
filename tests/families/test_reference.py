"""The reference itself: it is the transformers that was meant, it computes what it did, and rlrun's plan reads its
checkpoints as it reads released ones."""

from __future__ import annotations

import math
import re
import shutil
from importlib.metadata import Distribution, distribution
from pathlib import Path

import hf_process
import numpy as np
import pytest
import torch
from family_fixtures import FIXTURES
from hf_process import REFERENCE, ROOT, Reference, hf_logits, hf_logits_of
from packaging.requirements import Requirement
from safetensors.torch import save_file

from rlrun.families import FAMILIES
from rlrun.plan.model_spec import spec_from_directory
from rlrun.plan.parameters import count_parameters
from rlrun.plan.weight_files import read_weight_files
from rlrun.plan.weight_names import account

INDEXER = ".self_attn.indexer."


def installed(name: str) -> Distribution:
    """A package as processes of the reference find it: in .reference, else in this environment."""
    beside = [d for d in Distribution.discover(path=[str(REFERENCE)]) if d.metadata["Name"] == name]
    return beside[0] if beside else distribution(name)


def test_every_family_has_a_fixture():
    assert {fixture.family for fixture in FIXTURES.values()} == set(FAMILIES)


def test_the_reference_has_its_pinned_versions_and_all_that_transformers_asks_for():
    lines = (ROOT / "requirements" / "reference.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: installed(name).version for name in pins} == pins
    for text in installed("transformers").requires or []:
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            assert installed(needed.name).version in needed.specifier, text


def test_without_the_reference_a_test_fails_and_says_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(hf_process, "REFERENCE", tmp_path / ".reference")
    with pytest.raises(AssertionError, match="run `make setup`"):
        hf_process.make_references(tmp_path / "out")


@pytest.mark.parametrize("name", FIXTURES)
def test_transformers_computes_what_it_did(references, name):
    found = float(references[name].tensors["initial_logit_sum"])
    assert found == pytest.approx(FIXTURES[name].logit_sum, abs=1e-3)


@pytest.mark.parametrize("name", FIXTURES)
def test_the_plan_reads_the_checkpoint_and_counts_its_parameters(references, name):
    checkpoint = references[name].checkpoint
    spec = spec_from_directory(checkpoint, FIXTURES[name].family)
    stored = read_weight_files(Path(checkpoint)).tensors
    found = account(stored, spec)
    assert (found.missing, found.unexpected, found.misshapen, found.unreadable) == ((), (), (), ())
    held = {source.name for source in found.sources.values() if not source.name.endswith("e_score_correction_bias")}
    assert held == set(references[name].gradients())
    # The plan counts indexers, which only select and have no gradient; those of the draft layer count no more than it.
    draft = f"model.layers.{spec.num_layers}."
    indexers = {tensor for tensor in found.untrained if INDEXER in tensor and not tensor.startswith(draft)}
    counted = sum(math.prod(stored[tensor].shape) for tensor in held | indexers)
    assert spec.num_parameters == count_parameters(spec) == counted


@pytest.mark.parametrize("name", FIXTURES)
def test_the_plan_reads_what_does_not_show_in_a_count(references, name):
    fixture = FIXTURES[name]
    spec = spec_from_directory(references[name].checkpoint, fixture.family)
    halves = {"qwen3_5": 0.25, "qwen3_5_moe": 0.25, "glm4": 0.5, "glm4_moe": 0.5, "minimax_m2": 0.5}
    assert spec.rotary_fraction == halves.get(fixture.family, 1.0)
    assert spec.rope_theta == fixture.text.get("rope_parameters", fixture.text)["rope_theta"]
    assert spec.rms_norm_eps == fixture.text["rms_norm_eps"]
    assert (spec.moe.experts_per_token if spec.moe else 0) == fixture.text.get("num_experts_per_tok", 0)
    if spec.indexer is not None:
        assert spec.indexer.full_layers == (0, 1, 2)


@pytest.mark.parametrize("name", FIXTURES)
def test_gradients_have_the_shapes_of_the_checkpoint(references, name):
    reference = references[name]
    for variant in ("", "hf_eps.") if "hf_eps.loss" in reference.tensors else ("",):
        for tensor, gradient in reference.gradients(variant).items():
            assert gradient.shape == reference.weights[tensor].shape
            assert torch.isfinite(gradient).all()


# Tensors of the second layer (of the last, for attention of Qwen3.5) under the names that releases have.
NAMES = {
    "qwen3": ["model.layers.1.mlp.gate_proj.weight", "model.layers.1.self_attn.q_norm.weight"],
    "qwen3_moe": ["model.layers.1.mlp.experts.7.up_proj.weight", "model.layers.1.mlp.gate.weight", "lm_head.weight"],
    "qwen3_5_text": ["model.layers.1.linear_attn.in_proj_qkv.weight", "mtp.fc.weight"],
    "qwen3_5_moe_text": ["model.layers.1.mlp.experts.gate_up_proj", "mtp.layers.0.mlp.experts.7.up_proj.weight"],
    "qwen3_5": ["model.language_model.layers.3.self_attn.q_proj.weight", "model.visual.patch_embed.proj.weight"],
    "qwen3_5_moe": [
        "lm_head.weight",
        "model.language_model.layers.3.mlp.experts.down_proj",
        "model.language_model.layers.3.mlp.shared_expert_gate.weight",
        "model.language_model.norm.weight",
    ],
    "glm4": ["model.layers.1.mlp.gate_up_proj.weight", "model.layers.1.post_self_attn_layernorm.weight"],
    "glm4_moe": [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        "model.layers.1.mlp.shared_experts.up_proj.weight",
        "model.layers.1.self_attn.k_norm.weight",
        "model.layers.3.eh_proj.weight",
    ],
    "glm4_moe_air": ["model.layers.1.self_attn.q_proj.bias"],
    "glm4_moe_lite": ["model.layers.1.self_attn.kv_a_proj_with_mqa.weight"],
    "glm_moe_dsa": ["model.layers.2.self_attn.indexer.weights_proj.weight"],
    "glm_moe_dsa_52": ["model.layers.2.self_attn.indexer.k_norm.bias"],
    "minimax_m2": [
        "model.layers.1.block_sparse_moe.e_score_correction_bias",
        "model.layers.1.block_sparse_moe.experts.7.w2.weight",
        "model.layers.1.block_sparse_moe.gate.weight",
    ],
}


@pytest.mark.parametrize("name", FIXTURES)
def test_checkpoints_have_released_names(references, name):
    tensors = set(references[name].weights)
    assert set(NAMES[name]) <= tensors
    packed = [tensor for tensor in tensors if tensor.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert bool(packed) == name.startswith("qwen3_5_moe")


def test_shared_layers_of_glm_5_2_have_no_indexer(references):
    layers = {int(m[1]) for t in references["glm_moe_dsa_52"].weights if (m := re.search(rf"\.(\d+){INDEXER}", t))}
    assert layers == {0, 1, 2}


@pytest.mark.parametrize("name", [name for name in FIXTURES if "e_lite" in name or "dsa" in name])
def test_the_eps_of_latent_norms_makes_a_small_difference(references, name):
    """1e-5 of the configuration for 1e-6 of the class: more than rounding, less than a mistake."""
    for ours, theirs in zip(references[name].logits(), references[name].logits("hf_eps."), strict=True):
        assert 1e-5 < float((ours - theirs).abs().max()) < 1e-3


@pytest.mark.parametrize("name", FIXTURES)
def test_random_weights_show(references, name):
    """Every layer matters: logits of about size 1, no gradient that vanishes except of experts that got no token."""
    reference = references[name]
    assert 0.5 < float(reference.logits()[0].std()) < 2
    idle = {tensor for tensor, gradient in reference.gradients().items() if float(gradient.norm()) < 0.1}
    assert all(re.search(r"\.experts\.\d+\.", tensor) for tensor in idle), idle


STEP = 3e-5
"""Of all weights together: routers still select the same experts, and the loss moves by more than rounding does."""


@pytest.fixture(scope="module")
def losses(references, tmp_path_factory) -> dict[str, list[float]]:
    """Of every fixture, read from disk: as it is, and moved by STEP along its gradient and against it."""
    root = tmp_path_factory.mktemp("moved")
    folders = {(name, sign): root / f"{name}{sign:+}" for name in references for sign in (0, 1, -1)}
    for (name, sign), folder in folders.items():
        gradients = references[name].gradients()
        move_weights(references[name], folder, sign * STEP / norm(gradients))
    found = hf_logits_of([(folder, references[name].sequences) for (name, _), folder in folders.items()])
    computed = dict(zip(folders, found, strict=True))
    return {name: [loss(references[name], computed[name, sign]) for sign in (0, 1, -1)] for name in references}


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return sum(float((g.double() ** 2).sum()) for g in gradients.values()) ** 0.5


def move_weights(reference: Reference, folder: Path, step: float) -> None:
    folder.mkdir()
    gradients = reference.gradients()
    moved = {name: x + step * gradients[name] if name in gradients else x for name, x in reference.weights.items()}
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(Path(reference.checkpoint) / "config.json", folder)


def loss(reference: Reference, logits: list[torch.Tensor]) -> float:
    total = 0.0
    for scores, tokens, weights in zip(logits, reference.sequences, reference.loss_weights, strict=True):
        logprobs = torch.log_softmax(scores.double()[:-1], dim=-1).numpy()
        total += float(np.sum(weights[1:] * logprobs[np.arange(len(tokens) - 1), tokens[1:]]))
    return total


@pytest.mark.parametrize("name", FIXTURES)
def test_gradients_are_those_of_the_checkpoint_on_disk(references, losses, name):
    """The loss of what is on disk, and its slope along the gradient in every tensor on disk at once, which is the root
    of the sum of squares. (That each stands under its own name hf_reference.py checks one by one.)"""
    at, above, below = losses[name]
    assert at == pytest.approx(float(references[name].tensors["loss"]), rel=1e-4)
    assert (above - below) / (2 * STEP) == pytest.approx(norm(references[name].gradients()), rel=1e-2)


def test_a_folder_that_lacks_a_tensor_is_refused(references, tmp_path):
    """transformers would fill it with random numbers."""
    reference = references["qwen3"]
    kept = {name: x for name, x in reference.weights.items() if name != "model.layers.1.self_attn.q_norm.weight"}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(Path(reference.checkpoint) / "config.json", tmp_path)
    with pytest.raises(AssertionError, match=r"missing.*model\.layers\.1\.self_attn\.q_norm\.weight"):
        hf_logits(tmp_path, reference.sequences)
