"""The gradient of a whole optimizer step does not depend on how the step is cut: scheduler, loss weights and Megatron
together, over micro-batches, packing, data-, tensor-, pipeline- and context-parallel ranks, for every aggregation of
the loss, and for a loss whose ratio is that of the whole sequence.

In float32, which is what the trainer computes log-probs and sums gradients in whatever the dtype of the weights
(`rlrun.backends.megatron.logprobs`, Megatron's gradient buffers); a float64 model would be rounded there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from megatron_plans import make_plan, world

from rlrun.algos.advantages import spread
from rlrun.algos.weights import LOSS_WEIGHTS
from rlrun.data.batching import make_train_batches
from rlrun.data.schedule import schedule_step
from rlrun.data.types import Sample

pytestmark = pytest.mark.engines

RELATIVE = 1e-5
ROLLOUTS = np.array([0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8])  # 12 samples, three pairs of siblings


def samples_of(directory):
    """Ragged, masked prompts; one removed sample, one that is masked throughout."""
    import megatron_reference as hf

    batch = hf.make_batch(directory, seed=5, num_samples=len(ROLLOUTS))
    made = []
    for i, tokens in enumerate(batch.tokens):
        mask = (batch.loss_weights[i] > 0).astype(np.int8) * (i != 3)
        made.append(Sample(0, int(ROLLOUTS[i]), tokens, 1, mask, batch.rollout_logprobs[i], "stop", 0, removed=i == 6))
    return batch, made


def cut(directory, aggregation, dp, **how):
    batch, samples = samples_of(directory)
    advantages = spread(np.linspace(-1, 1.5, len(samples)), [s.loss_mask for s in samples])
    settings = {"batching": "packed", "max_tokens_per_gpu": 64, "micro_batch_size": None, **how}
    schedule = schedule_step([len(s.tokens) for s in samples], dp, **settings)
    return make_train_batches(
        samples,
        advantages,
        batch.old_logprobs,
        batch.ref_logprobs,
        schedule,
        aggregation,
        batch.temperature,
        rollout_of=ROLLOUTS,
        loss_constant=16,
    )


# Micro-batches on one rank: 1, 2 or 4 and more packed by tokens; padded by 12, 3 or 1 samples.
CUTS = {
    "packed 2": ({}, {"max_tokens_per_gpu": 80}),
    "packed 4": ({}, {"max_tokens_per_gpu": 40}),
    "packed alone": ({}, {"max_tokens_per_gpu": 1}),
    "packed by operations": ({}, {"max_tokens_per_gpu": 64, "attention_share": 0.1}),
    "padded 1": ({}, {"batching": "padded", "micro_batch_size": 12}),
    "padded 4": ({}, {"batching": "padded", "micro_batch_size": 3}),
    "dp2": ({"dp": 2}, {"max_tokens_per_gpu": 64}),
    "dp2 padded": ({"dp": 2}, {"batching": "padded", "micro_batch_size": 2}),
    "tp2": ({"tp": 2}, {"max_tokens_per_gpu": 64}),
    "tp2 sp padded": ({"tp": 2, "sequence_parallel": True}, {"batching": "padded", "micro_batch_size": 4}),
    "pp2": ({"pp": 2}, {"max_tokens_per_gpu": 64, "multiple": 2}),
    "pp2 padded": ({"pp": 2}, {"batching": "padded", "micro_batch_size": 5}),
    "cp2": ({"cp": 2}, {"max_tokens_per_gpu": 32, "cp": 2}),
    "cp2 alone": ({"cp": 2}, {"max_tokens_per_gpu": 1, "cp": 2}),
    "cp2 padded": ({"cp": 2}, {"batching": "padded", "micro_batch_size": 4}),
    "cp2 recompute": ({"cp": 2, "recompute": "full"}, {"max_tokens_per_gpu": 32, "cp": 2}),
}
SEQUENCE = {"kind": "gspo", "clip_low": 0.02, "clip_high": 0.03}


def plan_of(layout, batching="packed", **loss):
    plan = make_plan(tied=False, batching=batching, distributed_optimizer=False, **layout)
    return replace(plan, algo=replace(plan.algo, loss=replace(plan.algo.loss, **loss)))


def gradients(ranks, directory, plan, aggregations, **how):
    steps = {name: cut(directory, name, plan.train.dp, **how) for name in aggregations}
    results = ranks.run(world(plan), "step_gradients", plan, directory, steps)
    return results[0], steps


def compare(found, whole):
    for aggregation, expected in whole.items():
        result = found[aggregation]
        assert result["loss"] == pytest.approx(expected["loss"], rel=RELATIVE, abs=1e-6)
        assert result["gradients"].keys() == expected["gradients"].keys()
        for key, want in expected["gradients"].items():
            difference = np.linalg.norm(result["gradients"][key] - want) / np.linalg.norm(want)
            assert difference < RELATIVE, f"{aggregation} {key}: {difference:.1e}"


@pytest.fixture(scope="module")
def whole(ranks, checkpoints):
    """aggregation -> loss and gradients of the step as one packed micro-batch on one rank."""
    found, steps = gradients(ranks, checkpoints["untied"], plan_of({}), LOSS_WEIGHTS, max_tokens_per_gpu=10_000)
    assert {len(batches[0].micro_batches) for batches in steps.values()} == {1}
    return found


@pytest.mark.parametrize("name", list(CUTS))
def test_the_gradient_of_a_step_does_not_depend_on_its_cut(ranks, checkpoints, whole, name):
    layout, how = CUTS[name]
    plan = plan_of(layout, how.get("batching", "packed"))
    compare(gradients(ranks, checkpoints["untied"], plan, LOSS_WEIGHTS, **how)[0], whole)


def test_nor_does_that_of_a_loss_over_whole_sequences(ranks, checkpoints, whole):
    """Where context-parallel ranks have parts of them."""
    directory, aggregations = checkpoints["untied"], ("token_mean", "sequence_mean")
    one, _ = gradients(ranks, directory, plan_of({}, **SEQUENCE), aggregations, max_tokens_per_gpu=10_000)
    for name in ("cp2", "cp2 padded"):
        layout, how = CUTS[name]
        plan = plan_of(layout, how.get("batching", "packed"), **SEQUENCE)
        compare(gradients(ranks, directory, plan, aggregations, **how)[0], one)
    key = "lm_head.weight"
    plain, sequence = (found["token_mean"]["gradients"][key] for found in (whole, one))
    assert np.linalg.norm(plain - sequence) > 0.1 * np.linalg.norm(plain)


def test_aggregations_have_different_gradients(whole):
    """Otherwise the equality above would be that of nothing."""
    found = [result["gradients"]["lm_head.weight"] for result in whole.values()]
    for i, one in enumerate(found):
        assert all(np.linalg.norm(one - other) > 1e-3 * np.linalg.norm(one) for other in found[:i])
