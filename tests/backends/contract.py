"""What every backend promises, whatever is behind it. Called by the tests of the fakes and of the real engines."""

from __future__ import annotations

import asyncio
import os

import numpy as np

from rlrun.backends.base import GenerateRequest, RolloutBackend, TrainBackend
from rlrun.data.types import FINISH_REASONS, TokenBatch, TrainBatch, ValueBatch

TRAIN_KEYS = ("loss", "pg_loss", "pg_clip_fraction", "ppo_kl", "ratio_max", "grad_norm", "lr", "entropy")
VALUE_KEYS = ("value_loss", "value_clip_fraction", "grad_norm", "lr")


def check_rollout_backend(backend: RolloutBackend, prompt: tuple[int, ...], version: int) -> None:
    """Samples in order, ids with their log-probs, a finish reason, the version; a seed decides its sample."""

    async def run():
        request = GenerateRequest(prompt, seeds=(11, 12, 13, 11), temperature=1.0, max_new_tokens=6)
        first = await backend.generate(request)
        again = await backend.generate(request)
        greedy = await backend.generate(GenerateRequest(prompt, seeds=(1, 2), temperature=0.0, max_new_tokens=4))
        cut = [
            await backend.generate(GenerateRequest(prompt, seeds=(1, 2, 3), temperature=5.0, max_new_tokens=4, **only))
            for only in ({"top_k": 1}, {"top_p": 1e-6})
        ]
        for completion in (*cut[0], *cut[1]):
            assert completion.token_ids == greedy[0].token_ids, "the most probable token is the only one left"
        scores = await backend.score([*prompt, *first[0].token_ids], engine=0)
        return first, again, greedy, scores, await backend.versions()

    first, again, greedy, scores, versions = asyncio.run(run())
    assert len(first) == 4
    for completion in first:
        assert 1 <= len(completion.token_ids) <= 6
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.finish_reason in FINISH_REASONS
        assert (completion.finish_reason == "length") == (
            len(completion.token_ids) == 6
        ) or completion.finish_reason == "stop"
        assert completion.policy_version == version
        assert max(completion.logprobs) <= 0
    assert [c.token_ids for c in first] == [c.token_ids for c in again], "the same seeds gave other samples"
    assert first[0].token_ids == first[3].token_ids, "one seed, two samples"
    assert greedy[0].token_ids == greedy[1].token_ids, "greedy sampling depends on the seed"
    assert len(scores) == len(prompt) + len(first[0].token_ids) - 1
    np.testing.assert_allclose(scores[len(prompt) - 1 :], first[0].logprobs, atol=1e-4)
    assert set(versions) == {version}


def make_batch(tokens: list[np.ndarray], prompt_length: int, advantage: float) -> TrainBatch:
    """A batch on which old log-probs are the policy's own (filled by the caller)."""
    masks = [np.concatenate([np.zeros(prompt_length), np.ones(len(t) - prompt_length)]) for t in tokens]
    total = sum(m.sum() for m in masks)
    zeros = [np.zeros(len(t), np.float32) for t in tokens]
    return TrainBatch(
        tokens=tokens,
        micro_batches=[[i] for i in range(len(tokens))],
        loss_weights=[(m / total).astype(np.float32) for m in masks],
        advantages=[(m * advantage).astype(np.float32) for m in masks],
        old_logprobs=zeros,
        ref_logprobs=[],
        rollout_logprobs=zeros,
    )


def check_train_backend(backend: TrainBackend, directory: str, vocab_size: int) -> None:
    """Log-probs of the right shape; a step with a positive advantage makes its tokens likelier; save/load is exact."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(3, vocab_size, size=n).astype(np.int64) for n in (7, 9)]
    view = TokenBatch(tokens=tokens, micro_batches=[[0], [1]])
    before = backend.logprobs(view)
    assert [len(x) for x in before] == [7, 9]
    assert all(x.dtype == np.float32 and x[0] == 0 and (x <= 0).all() for x in before)
    np.testing.assert_allclose(backend.logprobs(view, "reference")[0], before[0], atol=1e-5)
    batch = make_batch(tokens, prompt_length=3, advantage=1.0)
    batch.old_logprobs = before
    batch.rollout_logprobs = before
    metrics = backend.train_step(batch).values
    assert not [key for key in TRAIN_KEYS if key not in metrics]
    assert metrics["grad_norm"] > 0
    assert abs(metrics["ppo_kl"]) < 1e-5
    after = backend.logprobs(view)
    assert sum(x[3:].sum() for x in after) > sum(x[3:].sum() for x in before)
    saved = backend.digest()
    os.makedirs(directory)
    backend.save(directory)
    backend.train_step(batch)
    assert backend.digest() != saved
    backend.load(directory)
    assert backend.digest() == saved
    np.testing.assert_array_equal(backend.logprobs(view)[1], after[1])


def check_critic(backend: TrainBackend, directory: str, vocab_size: int) -> None:
    """Values aligned like log-probs; steps lead them to the returns and leave the policy alone; save/load is exact."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(3, vocab_size, size=n).astype(np.int64) for n in (7, 9)]
    view = TokenBatch(tokens=tokens, micro_batches=[[0], [1]])
    before = backend.values(view)
    assert [len(x) for x in before] == [7, 9]
    assert all(x.dtype == np.float32 and x[0] == 0 for x in before)
    for warm in (view, TokenBatch(tokens, [[1, 0]], temperature=0.1)):  # neither micro-batches nor temperature matter
        np.testing.assert_allclose(backend.values(warm)[1], before[1], atol=1e-5)
    policy = backend.logprobs(view)
    masks = [np.arange(len(t)) >= 3 for t in tokens]
    batch = ValueBatch(
        tokens=tokens,
        micro_batches=[[0], [1]],
        loss_weights=[(m / 10).astype(np.float32) for m in masks],
        old_values=before,
        returns=[(v + 0.1 * m).astype(np.float32) for v, m in zip(before, masks, strict=True)],
    )
    metrics = [backend.value_step(batch).values for _ in range(3)]
    assert not [key for key in VALUE_KEYS if key not in metrics[0]]
    np.testing.assert_allclose(metrics[0]["value_loss"], 0.01, rtol=1e-4)
    assert metrics[0]["grad_norm"] > 0
    assert metrics[0]["value_clip_fraction"] == 0
    assert metrics[2]["value_loss"] < metrics[0]["value_loss"]
    np.testing.assert_array_equal(backend.logprobs(view)[1], policy[1])
    after, saved = backend.values(view), backend.digest()
    os.makedirs(directory)
    backend.save(directory)
    backend.value_step(batch)
    changed = {part for part, digest in backend.digest().items() if digest != saved[part]}
    own = {"critic_weights", "critic_optimizer"}
    assert own <= changed <= {*own, "critic_lr"}, f"a step of the critic changed {sorted(changed)}"
    backend.load(directory)
    assert backend.digest() == saved
    np.testing.assert_array_equal(backend.values(view)[1], after[1])
