"""Checkpoints of models with experts: another expert-parallel layout has the same state, and trains on equally."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_plans import make_plan, world
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

sys.path.insert(0, str(Path(__file__).parents[2] / "families"))

from rlrun.data.types import TrainBatch
from rlrun.plan.model_spec import spec_from_directory

pytestmark = pytest.mark.engines

LAYOUTS = {
    "single": {},
    "dp2": {"dp": 2},
    "ep2": {"dp": 2, "ep": 2},
    "dp4 ep2": {"dp": 4, "ep": 2},  # the optimizer of the experts is shared out too
    "tp2 ep2": {"tp": 2, "ep": 2, "sequence_parallel": True},
    "tp2 etp2": {"tp": 2, "etp": 2, "sequence_parallel": True},
    "pp2 ep2": {"pp": 2, "dp": 2, "ep": 2, "stage_layers": (1, 2)},  # no experts in the first stage
}
ROUNDING = 1e-6
NARROW = {"rtol": 2**-7, "atol": 3e-4}
"""Of bfloat16, where the layouts' gradients are rounded in another order; a step moves weights by 1e-2."""


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    from hf_process import make_references

    return make_references(tmp_path_factory.mktemp("references"), ["qwen3_moe", "glm4_moe"])


def batch(vocab, seed):
    """Any numbers: what is compared is the same training twice."""
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(0, vocab, rng.integers(4, 20)) for _ in range(8)]
    masks = [np.arange(len(t)) >= 2 for t in tokens]
    total = sum(mask.sum() for mask in masks)
    logprobs = [(rng.normal(-4, 0.2, len(t)) * m).astype(np.float32) for t, m in zip(tokens, masks, strict=True)]
    return TrainBatch(
        tokens=tokens,
        micro_batches=[[0, 1, 2], [3, 4], [5, 6, 7]],
        loss_weights=[(m / total).astype(np.float32) for m in masks],
        advantages=[(m * rng.normal()).astype(np.float32) for m in masks],
        old_logprobs=logprobs,
        ref_logprobs=[],
        rollout_logprobs=logprobs,
    )


def contents(directory):
    """Every tensor of a checkpoint, whole: weights, main weights and moments."""
    state = {}
    reader, planner = FileSystemReader(directory), _EmptyStateDictLoadPlanner()
    _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    return {key: tensor for key, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def folder(path):
    path.mkdir()
    return str(path)


@pytest.mark.parametrize(
    ("name", "source", "target", "settings"),
    [
        ("qwen3_moe", "ep2", "ep2", {}),
        ("qwen3_moe", "ep2", "single", {}),
        ("qwen3_moe", "dp4 ep2", "ep2", {}),
        ("qwen3_moe", "dp4 ep2", "single", {"gather": "host"}),
        ("qwen3_moe", "ep2", "dp2", {"dtype": "bfloat16"}),
        ("qwen3_moe", "ep2", "single", {"distributed_optimizer": False}),
        ("qwen3_moe", "single", "ep2", {"dtype": "bfloat16", "distributed_optimizer": False}),
        ("qwen3_moe", "tp2 ep2", "single", {}),
        ("qwen3_moe", "tp2 etp2", "single", {}),
        ("qwen3_moe", "dp2", "ep2", {}),
        ("glm4_moe", "ep2", "single", {}),
        ("glm4_moe", "single", "tp2 ep2", {}),
        ("glm4_moe", "pp2 ep2", "single", {}),
        ("glm4_moe", "single", "pp2 ep2", {}),
    ],
)
def test_experts_load_into_another_layout_and_train_on_equally(
    ranks, references, tmp_path, name, source, target, settings
):
    model = references[name]
    spec = spec_from_directory(model.checkpoint, model.fixture.family)
    saving, loading = (
        make_plan(spec=spec, uses_reference=False, **LAYOUTS[layout], **settings) for layout in (source, target)
    )
    batches = [batch(spec.vocab_size, seed) for seed in range(4)]
    directory, again = folder(tmp_path / "step"), folder(tmp_path / "again")
    saved = ranks.run(world(saving), "save_and_go_on", saving, model.checkpoint, directory, batches[:3], 2)

    ranks.run(world(loading), "load_and_save", loading, model.checkpoint, directory, again, batches[3])
    before, after = contents(directory), contents(again)
    assert len([key for key in before if "exp_avg_sq" in key and ".experts." in key]) >= 2
    assert set(before) == set(after)
    for key, tensor in before.items():
        rows = min(len(tensor), len(after[key]))  # of a vocabulary that layouts pad differently
        assert rows >= spec.vocab_size or tensor.shape == after[key].shape, key
        assert torch.equal(tensor[:rows], after[key][:rows]), f"{key} changed on the way"

    args = (loading, model.checkpoint, directory, batches[2:3], True)
    resumed = ranks.run(world(loading), "load_and_go_on", *args)
    assert all(r["own_steps"] for r in resumed)
    if source == target:
        assert [r["at_load"] for r in resumed] == [s["at_save"] for s in saved]
        assert [r["at_end"] for r in resumed] == [s["at_end"] for s in saved]
    near = NARROW if "dtype" in settings else {"rtol": 0, "atol": ROUNDING}
    assert resumed[0]["metrics"][0]["loss"] == pytest.approx(saved[0]["metrics"][0]["loss"], abs=near["atol"])
    for key, tensor in saved[0]["weights"].items():
        np.testing.assert_allclose(resumed[0]["weights"][key], tensor, **near, err_msg=key)
