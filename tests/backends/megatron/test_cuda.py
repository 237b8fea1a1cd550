"""The same trainer on one NVIDIA GPU, through NCCL: the code the CPU tests run, without the shim."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from megatron_plans import make_plan

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.fixture(scope="module")
def expected(checkpoints):
    """Batches, and what Hugging Face and torch make of them on the CPU in float32."""
    import megatron_reference as hf

    batches = [hf.make_batch(checkpoints["untied"], seed) for seed in range(3)]
    history, weights = hf.train(checkpoints["untied"], batches, make_plan(tied=False).algo)
    with torch.no_grad():
        model = hf.load(checkpoints["untied"])
        logprobs = [hf.token_logprobs(model, t, hf.TEMPERATURE).numpy() for t in batches[0].tokens]
    return batches, history, weights, logprobs


@pytest.mark.parametrize("batching", ["packed", "padded"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_float32_training_equals_hugging_face_on_the_cpu(ranks, checkpoints, expected, batching, recompute):
    batches, history, weights, logprobs = expected
    plan = make_plan(device="cuda", tied=False, batching=batching, recompute=recompute)
    result = ranks.run(1, "train", plan, checkpoints["untied"], batches)[0]
    assert max(np.abs(a - b).max() for a, b in zip(result["logprobs"], logprobs, strict=True)) < 1e-3
    for metrics, want in zip(result["metrics"], history, strict=True):
        assert metrics == pytest.approx(want, rel=1e-2, abs=1e-3)
    for key, want in weights.items():
        np.testing.assert_allclose(result["after"][key], want.numpy(), atol=2e-3)


def test_bfloat16_trains_and_resumes_bit_for_bit(ranks, checkpoints, expected, tmp_path):
    batches, history, _, logprobs = expected
    plan = make_plan(device="cuda", tied=False, dtype="bfloat16")
    directory = tmp_path / "step"
    directory.mkdir()
    args = (plan, checkpoints["untied"], str(directory))
    result = ranks.run(1, "train", plan, checkpoints["untied"], batches[:1])[0]
    difference = np.concatenate([np.abs(a - b) for a, b in zip(result["logprobs"], logprobs, strict=True)])
    assert difference.mean() < 0.1
    assert result["metrics"][0]["loss"] == pytest.approx(history[0]["loss"], abs=0.05)
    saved = ranks.run(1, "save_and_go_on", *args, batches, 1)[0]
    resumed = ranks.run(1, "load_and_go_on", *args, batches[1:], True)[0]
    assert resumed["at_load"] == saved["at_save"]
    assert resumed["metrics"] == saved["metrics"]
    assert resumed["at_end"] == saved["at_end"]
