"""Supervised learning in Megatron against Hugging Face and torch's own cross entropy, on one and on two ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from megatron_plans import SPEC, make_plan, world

pytestmark = pytest.mark.engines

LAYOUTS = {
    "packed": {},
    "padded": {"batching": "padded"},
    "tp2": {"tp": 2},
    "dp2": {"dp": 2, "distributed_optimizer": False},
    "cp2": {"cp": 2, "distributed_optimizer": False},
    "cp2 padded": {"cp": 2, "batching": "padded", "distributed_optimizer": False},
}
NEAR = 1e-5


def make_rows(aggregation):
    """Eight ragged rows as the loop sends them: prompts without weight, no old policy, nothing rewarded."""
    from rlrun.data.batching import make_train_batches
    from rlrun.data.schedule import RankSchedule
    from rlrun.data.types import Prompt
    from rlrun.runtime.sft import sample_of

    rng = np.random.default_rng(3)
    ids = lambda low, high: tuple(int(t) for t in rng.integers(0, SPEC.vocab_size, rng.integers(low, high)))  # noqa: E731
    samples = [sample_of(Prompt(i, (), ids(1, 7), response_ids=ids(1, 12))) for i in range(8)]
    none = [np.zeros(len(s.tokens), np.float32) for s in samples]
    cuts = ((0, 1, 2), (3, 4), (5, 6, 7))
    (batch,) = make_train_batches(samples, none, None, None, [RankSchedule(tuple(range(8)), cuts)], aggregation, 1.0)
    return samples, batch


def by_torch(directory, samples, aggregation):
    """Loss and gradients of the mean cross entropy: over all tokens, or over samples of their own means."""
    import megatron_reference as hf

    model = hf.load(directory)
    sums, counts = [], []
    for sample in samples:
        ids = torch.from_numpy(sample.tokens)
        labels = torch.where(torch.arange(len(ids)) >= sample.prompt_length, ids, -100)
        logits = model(input_ids=ids[None]).logits[0, :-1]
        sums.append(torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum"))
        counts.append(sample.response_length)
    if aggregation == "token_mean":
        loss = torch.stack(sums).sum() / sum(counts)
    else:
        loss = torch.stack([s / n for s, n in zip(sums, counts, strict=True)]).mean()
    loss.backward()
    return float(loss), {name: p.grad.numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_is_that_of_torchs_cross_entropy(ranks, checkpoints, layout, aggregation):
    plan = make_plan(uses_reference=False, **LAYOUTS[layout])
    plan = replace(plan, algo=replace(plan.algo, loss=replace(plan.algo.loss, kind="sft", kl_coef=0.0)))
    samples, batch = make_rows(aggregation)
    loss, expected = by_torch(checkpoints["tied"], samples, aggregation)
    results = ranks.run(world(plan), "gradients", plan, checkpoints["tied"], batch)
    metrics = results[0]["metrics"]
    assert metrics["loss"] == pytest.approx(loss, rel=NEAR)
    assert metrics["nll"] == metrics["loss"]
    assert metrics["num_tokens"] == sum(s.response_length for s in samples)
    found = {name: g for result in results for name, g in result["gradients"].items()}
    assert set(found) == set(expected)
    largest = max(np.abs(g).max() for g in expected.values())
    assert largest > 1e-2
    for name, gradient in expected.items():
        assert np.abs(found[name] - gradient).max() < NEAR * max(1.0, largest), name
