"""One prompt, one response, one reward: the agent of most RL recipes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import numpy as np

from rlrun.agents.rewards import Reward
from rlrun.agents.threads import in_thread
from rlrun.backends.base import Completion, GenerateRequest, RolloutBackend
from rlrun.data.types import Group, Prompt, Sample
from rlrun.errors import RunFailed

MAX_REWARD_THREADS = 32
MAX_WAITING_THREADS = 256
"""Of reward functions that ask a served model, and mostly wait for it."""


def sample_seed(run_seed: int, stream: str, step: int, position: int, prompt_id: int, index: int) -> int:
    """Seed of one sample: the first 63 bits of sha256 over "run_seed/stream/step/position/prompt_id/index".

    `position` is the prompt's place in the step (a prompt may be drawn twice in one), `stream` keeps evaluation apart
    from training. Nothing else enters, so the samples do not depend on engines, batching or timing.
    """
    text = f"{run_seed}/{stream}/{step}/{position}/{prompt_id}/{index}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


class SingleTurn:
    """Implements Agent. One instance draws training samples, another evaluates (temperature 0 is greedy).

    `reward` is called as f(prompt, response_text, label) in a thread, with a deadline. `seed` None leaves sampling to
    the engines; `stream` is "train" or "eval". Belongs to one event loop.
    """

    def __init__(
        self,
        backend: RolloutBackend,
        reward: Reward,
        *,
        group_size: int,
        temperature: float,
        max_response_tokens: int,
        stop: Sequence[str],
        seed: int | None,
        stream: str,
        max_concurrent_groups: int,
        reward_timeout_s: float,
        top_p: float = 1.0,
        top_k: int = -1,
        reward_threads: int = MAX_REWARD_THREADS,
    ):
        self._backend, self._reward = backend, reward
        self._top_p, self._top_k = top_p, top_k
        self._group_size, self._temperature = group_size, temperature
        self._max_response_tokens, self._stop = max_response_tokens, tuple(stop)
        self._seed, self._stream = seed, stream
        self._reward_timeout_s = reward_timeout_s
        self._generating = asyncio.Semaphore(max_concurrent_groups)
        self._rewarding = asyncio.Semaphore(reward_threads)

    async def collect(self, prompts: Sequence[Prompt], *, step: int, first_position: int = 0) -> list[Group]:
        """One rewarded group a prompt, in their order, at most `max_concurrent_groups` of them generating at a time.

        Raises RunFailed naming the first prompt that failed, after cancelling the others.
        """
        tasks = [
            asyncio.create_task(self.rollout(p, step=step, position=i)) for i, p in enumerate(prompts, first_position)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def rollout(self, prompt: Prompt, *, step: int, position: int) -> Group:
        """One group: generated together, then rewarded sample by sample. Raises RunFailed naming the prompt."""
        try:
            async with self._generating:
                completions = await self._backend.generate(self._request(prompt, step, position))
            first = position * self._group_size
            samples = [to_sample(prompt, completion, first + i) for i, completion in enumerate(completions)]
            await self._give_rewards(prompt, samples)
        except RunFailed as error:
            raise RunFailed(error.part, f"prompt {prompt.prompt_id}: {error.summary}", error.hint) from error
        except Exception as error:
            summary = f"prompt {prompt.prompt_id}: {type(error).__name__}: {error}"
            raise RunFailed("rollout", summary) from error
        return Group(prompt, samples)

    def _request(self, prompt: Prompt, step: int, position: int) -> GenerateRequest:
        seeds: tuple[int | None, ...] = (None,) * self._group_size
        if self._seed is not None:
            at = (self._seed, self._stream, step, position, prompt.prompt_id)
            seeds = tuple(sample_seed(*at, i) for i in range(self._group_size))
        most = self._max_response_tokens
        return GenerateRequest(prompt.token_ids, seeds, self._temperature, most, self._stop, self._top_p, self._top_k)

    async def _give_rewards(self, prompt: Prompt, samples: list[Sample]) -> None:
        """An aborted sample takes the mean of its siblings: 0 would move the baseline of the group."""
        finished = [s for s in samples if s.finish_reason != "abort"]
        rewards = await asyncio.gather(*(self._reward_of(prompt, s.response_text) for s in finished))
        for sample in samples:
            sample.reward = float(np.mean(rewards)) if rewards else 0.0
        for sample, reward in zip(finished, rewards, strict=True):
            sample.reward = reward

    async def _reward_of(self, prompt: Prompt, text: str) -> float:
        async with self._rewarding:
            answer = in_thread(self._reward, prompt, text, prompt.label)
            try:
                return await asyncio.wait_for(answer, self._reward_timeout_s)
            except TimeoutError:
                summary = f"the reward function took longer than {self._reward_timeout_s:g} s"
                hint = "make it faster, or raise reward.timeout_s"
                raise RunFailed("reward", summary, hint) from None


def to_sample(prompt: Prompt, completion: Completion, rollout_id: int) -> Sample:
    """Prompt ids and the very ids that the engine sampled, without a reward yet. The stop token is trained on; of an
    aborted sample nothing is. Raises RunFailed for an answer that cannot be trained on."""
    before, new = len(prompt.token_ids), len(completion.token_ids)
    aborted = completion.finish_reason == "abort"
    if len(completion.logprobs) != new:
        raise RunFailed("rollout", f"the engine sent {len(completion.logprobs)} log-probs for {new} tokens")
    if not new and not aborted:
        raise RunFailed("rollout", f"the engine sent an empty response that ended with {completion.finish_reason}")
    logprobs = np.zeros(before + new, np.float32)
    logprobs[before:] = completion.logprobs
    if not np.isfinite(logprobs).all():
        raise RunFailed("rollout", "the engine sent a log-prob that is not finite")
    loss_mask = np.zeros(before + new, np.int8)
    loss_mask[before:] = 0 if aborted else 1
    return Sample(
        prompt_id=prompt.prompt_id,
        rollout_id=rollout_id,
        tokens=np.array(prompt.token_ids + completion.token_ids, np.int64),
        prompt_length=before,
        loss_mask=loss_mask,
        rollout_logprobs=logprobs,
        finish_reason=completion.finish_reason,
        policy_version=completion.policy_version,
        response_text=completion.text,
        metrics={"aborted": float(aborted)},
    )
