"""Every family in Megatron against transformers: logits, the gradient of every parameter, and weights bit for bit,
under
every parallel layout. The reference is made by tests/families/hf_reference.py in a process of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "families"))

pytestmark = pytest.mark.engines

LOGITS = 1e-5
ILL_CONDITIONED = 5e-5
"""Where the output of a gated delta net is almost nothing, its norm divides by almost nothing: rounding in the sixth
digit of a weight moves such logits by as much (tests/families/hf_reference.py draws tokens with a limit to that)."""
GRADIENT = 1e-4
"""Of the largest gradient in the tensor: absolute differences in float32 grow with it."""

DENSE = {
    "packed": {},
    "padded": {"batching": "padded"},
    "recompute": {"recompute": "full"},
    "tp2": {"tp": 2},
    "tp2 sp": {"tp": 2, "sequence_parallel": True},
    "tp2 sp padded": {"tp": 2, "sequence_parallel": True, "batching": "padded"},
    "pp2": {"pp": 2},
    "cp2": {"cp": 2},
    "cp2 padded": {"cp": 2, "batching": "padded"},
}
# Megatron trains experts beside tensor parallelism only with sequence parallelism, and sums the gradients of experts
# that tensor-parallel ranks hold whole only under expert parallelism.
SPARSE = {
    "packed": {},
    "padded": {"batching": "padded"},
    "tp2 etp2": {"tp": 2, "etp": 2, "sequence_parallel": True},
    "tp2 ep2": {"tp": 2, "ep": 2, "sequence_parallel": True},
    "pp2": {"pp": 2},
    "ep2": {"dp": 2, "ep": 2},
    "ep2 padded": {"dp": 2, "ep": 2, "batching": "padded"},
    "cp2": {"cp": 2},
    "cp2 ep2": {"cp": 2, "ep": 2},
}
# A gated delta net needs whole sequences.
HYBRID_DENSE, HYBRID_SPARSE = (
    {layout: how for layout, how in layouts.items() if "cp" not in how} for layouts in (DENSE, SPARSE)
)
NAMES = {
    "qwen3": DENSE,
    "qwen3_moe": SPARSE,
    "qwen3_5": HYBRID_DENSE,
    "qwen3_5_text": {"packed": {}},
    "qwen3_5_moe_text": {"packed": {}},
    "qwen3_5_moe": HYBRID_SPARSE,
    "glm4": DENSE,
    "glm4_moe": SPARSE,
    "glm4_moe_air": SPARSE,
    "glm4_moe_lite": SPARSE,
    "glm_moe_dsa": SPARSE,
    "glm_moe_dsa_52": {"packed": {}, "tp2 ep2": SPARSE["tp2 ep2"], "pp2": {"pp": 2}},
    "minimax_m2": SPARSE,
}


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    from hf_process import make_references

    return make_references(tmp_path_factory.mktemp("references"), NAMES)


def uneven(spec, pp):
    """Layers of the stages where they do not divide."""
    return (
        {}
        if pp == 1 or spec.num_layers % 2 == 0
        else {"stage_layers": (spec.num_layers // 2 + 1, spec.num_layers // 2)}
    )


@pytest.mark.parametrize(("name", "layout"), [(n, layout) for n, layouts in NAMES.items() for layout in layouts])
def test_megatron_computes_what_transformers_computes(ranks, references, name, layout):
    from megatron_plans import make_plan

    from rlrun.plan.model_spec import spec_from_directory

    reference, how = references[name], NAMES[name][layout]
    spec = spec_from_directory(reference.checkpoint, reference.fixture.family)
    plan = make_plan(
        spec=spec, distributed_optimizer=False, uses_reference=False, **how, **uneven(spec, how.get("pp", 1))
    )
    world = plan.train.tp * plan.train.pp * plan.train.dp * plan.train.cp
    arguments = (plan, reference.checkpoint, reference.sequences, reference.loss_weights)
    results = ranks.run(world, "family", *arguments)
    found = {i: x for result in results for i, x in result["logits"].items()}
    limit = LOGITS if spec.linear_attention is None else ILL_CONDITIONED
    for i, expected in enumerate(reference.logits()):
        worst = np.abs(found[i] - expected.numpy()[:-1]).max()
        assert worst <= limit, f"logits of sequence {i} differ by {worst:.2g}"
    logprobs = {i: x for result in results for i, x in result["logprobs"].items()}
    for i, expected in enumerate(reference.logprobs()):
        np.testing.assert_allclose(logprobs[i], expected.numpy(), atol=limit)
    compare_weights(results[0]["weights"], one_by_one(reference.weights))
    compare_gradients(results[0]["gradients"], one_by_one(reference.gradients()))


def one_by_one(tensors):
    """Under the names that rlrun sends to engines: experts that share a tensor in the checkpoint each have their own,
    and Qwen3.5's text model is that of the vision-language checkpoint."""
    found = {}
    is_text_only = any(name.startswith("model.layers.") and ".linear_attn." in name for name in tensors)
    for name, tensor in tensors.items():
        if is_text_only:
            name = re.sub(r"^model\.", "model.language_model.", name)
        packed = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", name)
        if packed is None:
            found[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            parts = matrix.chunk(2) if packed[2] == "gate_up_proj" else [matrix]
            kinds = ["gate_proj", "up_proj"] if packed[2] == "gate_up_proj" else ["down_proj"]
            for kind, part in zip(kinds, parts, strict=True):
                found[f"{packed[1]}.{expert}.{kind}.weight"] = part
    return found


def compare_weights(found, on_disk):
    """Everything that Megatron holds has come back as it was read."""
    assert found
    for name, array in found.items():
        assert array.dtype == on_disk[name].numpy().dtype, name
        assert np.array_equal(array, on_disk[name].numpy()), f"{name} changed on the way"


def compare_gradients(found, expected):
    buffers = [name for name in found if name.endswith("e_score_correction_bias")]
    assert set(found) - set(buffers) == set(expected)
    wrong = {}
    for name, tensor in expected.items():
        reach = max(float(tensor.abs().max()), 1e-6)
        worst = float(np.abs(found[name] - tensor.numpy()).max()) / reach
        if not worst <= GRADIENT:
            wrong[name] = f"{worst:.2g}"
    assert not wrong, f"gradients differ, relative to their largest: {wrong}"
