"""The Megatron trainer against Hugging Face, torch autograd and torch AdamW, in every layout two processes allow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from megatron_plans import make_plan

pytestmark = pytest.mark.engines

LAYOUTS = {
    "tp1": {},
    "tp2": {"tp": 2},
    "tp2_sp": {"tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2},
}
NEAR = 1e-5


def world(plan):
    return plan.train.tp * plan.train.pp * plan.train.dp


def reported(results, key):
    return {r["info"].dp: r[key] for r in results if r["info"].reports}


@pytest.fixture(scope="module")
def reference(checkpoints):
    """Per checkpoint: batches of three optimizer steps, what torch makes of them, and the log-probs before."""
    import megatron_reference as hf

    made = {}
    for name, directory in checkpoints.items():
        batches = [hf.make_batch(directory, seed) for seed in range(3)]
        plan = make_plan(tied=name == "tied")
        history, weights = hf.train(directory, batches, plan.algo)
        model = hf.load(directory)
        with torch.no_grad():
            logprobs = [hf.token_logprobs(model, t, hf.TEMPERATURE).numpy() for t in batches[0].tokens]
        made[name] = {"batches": batches, "history": history, "weights": weights, "logprobs": logprobs, "model": model}
    return made


@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("batching", ["packed", "padded"])
def test_training_equals_hugging_face_and_torch_adamw(ranks, checkpoints, reference, name, layout, batching):
    """Log-probs, every metric of three steps, the weights after them, and the reference that stays what it was."""
    if batching == "padded" and name == "untied":
        pytest.skip("the two are independent")
    plan = make_plan(tied=name == "tied", batching=batching, **LAYOUTS[layout])
    expected = reference[name]
    results = ranks.run(world(plan), "train", plan, checkpoints[name], expected["batches"])

    for dp, values in reported(results, "logprobs").items():
        mine = expected["logprobs"][dp :: plan.train.dp]
        assert [len(v) for v in values] == [len(e) for e in mine]
        assert max(np.abs(v - e).max() for v, e in zip(values, mine, strict=True)) < NEAR
    for silent in (r for r in results if not r["info"].reports):
        assert silent["logprobs"] == []
    assert all(r["metrics"] == results[0]["metrics"] for r in results), "ranks disagree"
    for step, want in zip(results[0]["metrics"], expected["history"], strict=True):
        assert step.keys() == want.keys()
        for key in want:
            assert step[key] == pytest.approx(want[key], rel=1e-4, abs=2e-5), key
    for key, want in expected["weights"].items():
        difference = np.abs(results[0]["after"][key] - want.numpy()).max()
        assert difference < 1e-4, f"{key} {difference}"
    before, after = reported(results, "logprobs"), reported(results, "logprobs_after")
    moved = max(np.abs(a - b).max() for a, b in zip(before[0], after[0], strict=True))
    assert moved > 1e-2, "nothing was learned"
    for dp, values in reported(results, "reference_after").items():
        assert all(np.array_equal(v, b) for v, b in zip(values, before[dp], strict=True))
