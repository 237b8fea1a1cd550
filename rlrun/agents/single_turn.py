"""The plainest agent: one generation, one reward."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rlrun.backends.base import Completion, GenerateRequest, RolloutBackend
from rlrun.data.types import Group, Prompt, Sample
from rlrun.errors import RunFailed

REWARD_THREADS = 8


def sample_seed(run_seed: int, stream: str, step: int, position: int, sample: int) -> int:
    """Seed in 0..2**63-1 of one sample: the first 63 bits of sha256 over its coordinates.

    `position` is the prompt's place in the step (a prompt may be drawn twice in one), `stream` keeps evaluation apart
    from training. Nothing else enters, so the samples do not depend on engines, batching or timing.
    """
    text = f"{run_seed}/{stream}/{step}/{position}/{sample}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


class SingleTurn:
    """Implements Agent. `reward` is called as f(prompt, response_text, label) in a thread, with a deadline."""

    def __init__(
        self,
        backend: RolloutBackend,
        reward: Callable[[Prompt, str, Any], float],
        *,
        group_size: int,
        temperature: float,
        max_response_tokens: int,
        stop: Sequence[str],
        seed: int | None,
        stream: str,
        max_concurrent_groups: int,
        reward_timeout_s: float,
    ):
        self._backend, self._reward = backend, reward
        self._group_size, self._temperature = group_size, temperature
        self._max_response_tokens, self._stop = max_response_tokens, tuple(stop)
        self._seed, self._stream = seed, stream
        self._max_concurrent_groups, self._reward_timeout_s = max_concurrent_groups, reward_timeout_s
        self._threads = ThreadPoolExecutor(REWARD_THREADS, thread_name_prefix="reward")

    async def collect(self, prompts: Sequence[Prompt], *, step: int) -> list[Group]:
        gate = asyncio.Semaphore(self._max_concurrent_groups)

        async def one(position: int, prompt: Prompt) -> Group:
            async with gate:
                return await self._group(position, prompt, step)

        tasks = [asyncio.ensure_future(one(i, prompt)) for i, prompt in enumerate(prompts)]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _group(self, position: int, prompt: Prompt, step: int) -> Group:
        seeds: list[int | None] = [None] * self._group_size
        if self._seed is not None:
            seeds = [sample_seed(self._seed, self._stream, step, position, k) for k in range(self._group_size)]
        completions = await self._backend.generate(
            GenerateRequest(prompt.token_ids, tuple(seeds), self._temperature, self._max_response_tokens, self._stop)
        )
        rewards = await asyncio.gather(*(self._score(prompt, c) for c in completions))
        first = position * self._group_size
        samples = [
            to_sample(prompt, completion, reward, first + k)
            for k, (completion, reward) in enumerate(zip(completions, rewards, strict=True))
        ]
        return Group(prompt, samples)

    async def _score(self, prompt: Prompt, completion: Completion) -> float:
        if completion.finish_reason == "abort":
            return 0.0
        call = asyncio.get_running_loop().run_in_executor(
            self._threads, self._reward, prompt, completion.text, prompt.label
        )
        try:
            return await asyncio.wait_for(call, self._reward_timeout_s)
        except TimeoutError:
            raise RunFailed(
                "reward",
                f"no answer for prompt {prompt.prompt_id} within {self._reward_timeout_s:g} s",
                "raise reward.timeout_s, or look at the reward function",
            ) from None


def to_sample(prompt: Prompt, completion: Completion, reward: float, rollout_id: int) -> Sample:
    """Prompt ids and the very ids that the engine sampled. The stop token is trained on; an aborted sample is not."""
    n_prompt, n_response = len(prompt.token_ids), len(completion.token_ids)
    trained = 0 if completion.finish_reason == "abort" else 1
    return Sample(
        prompt_id=prompt.prompt_id,
        rollout_id=rollout_id,
        tokens=np.array(prompt.token_ids + completion.token_ids, np.int64),
        prompt_length=n_prompt,
        loss_mask=np.concatenate([np.zeros(n_prompt, np.int8), np.full(n_response, trained, np.int8)]),
        rollout_logprobs=np.concatenate([np.zeros(n_prompt, np.float32), np.array(completion.logprobs, np.float32)]),
        finish_reason=completion.finish_reason,
        policy_version=completion.policy_version,
        response_text=completion.text,
        reward=reward,
    )
