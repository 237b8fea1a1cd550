"""One prompt, one response, one reward: the agent of most RL recipes."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence

import numpy as np

from rlrun.agents.rewards import Reward
from rlrun.backends.base import Completion, GenerateRequest, RolloutBackend
from rlrun.data.types import Group, Prompt, Sample
from rlrun.errors import RunFailed
from rlrun.plan.types import RolloutPlan

MAX_REWARD_THREADS = 32


def sample_seed(seed: int, stream: str, step: int, position: int, prompt_id: int, index: int) -> int:
    """Sampling seed of one sample, in 0..2**63 - 1.

    The first 8 bytes, big-endian and without the top bit, of sha256 over "seed/stream/step/position/prompt_id/index"
    in decimal. A hash, because neighbouring seeds need not give unrelated samples; sha256, because it is the same on
    every machine and in every version of everything.
    """
    digest = hashlib.sha256(f"{seed}/{stream}/{step}/{position}/{prompt_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class SingleTurn:
    """An Agent. One instance draws training samples, another, with `stream="eval"`, evaluates (temperature 0 is
    greedy). Belongs to the event loop that calls it; the reward function runs in threads."""

    def __init__(
        self,
        backend: RolloutBackend,
        reward: Reward,
        rollout: RolloutPlan,
        *,
        group_size: int,
        temperature: float,
        seed: int,
        reward_timeout_s: float,
        stream: str = "train",
    ):
        self._backend, self._reward, self._plan = backend, reward, rollout
        self._group_size, self._temperature = group_size, temperature
        self._seed, self._stream = seed, stream
        self._reward_timeout_s = reward_timeout_s
        self._generating = asyncio.Semaphore(rollout.max_concurrent_groups)
        self._rewarding = asyncio.Semaphore(MAX_REWARD_THREADS)

    async def collect(self, prompts: Sequence[Prompt], *, step: int) -> list[Group]:
        """One rewarded group a prompt, in their order, at most `max_concurrent_groups` of them generating at a time.

        Raises RunFailed naming the first prompt that failed, after cancelling the others.
        """
        tasks = [asyncio.create_task(self.rollout(p, step=step, position=i)) for i, p in enumerate(prompts)]
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
            samples = [self._sample(prompt, position, i, completion) for i, completion in enumerate(completions)]
            await self._give_rewards(prompt, samples)
        except RunFailed as error:
            raise RunFailed(error.part, f"prompt {prompt.prompt_id}: {error.summary}", error.hint) from error
        except Exception as error:
            summary = f"prompt {prompt.prompt_id}: {type(error).__name__}: {error}"
            raise RunFailed("rollout", summary) from error
        return Group(prompt, samples)

    def _request(self, prompt: Prompt, step: int, position: int) -> GenerateRequest:
        at = (self._seed, self._stream, step, position, prompt.prompt_id)
        return GenerateRequest(
            token_ids=prompt.token_ids,
            seeds=tuple(sample_seed(*at, i) if self._plan.seeded else None for i in range(self._group_size)),
            temperature=self._temperature,
            max_new_tokens=self._plan.max_response_tokens,
            stop=self._plan.stop,
        )

    def _sample(self, prompt: Prompt, position: int, index: int, completion: Completion) -> Sample:
        before, new = len(prompt.token_ids), len(completion.token_ids)
        if len(completion.logprobs) != new:
            raise RunFailed("rollout", f"{len(completion.logprobs)} log-probs for {new} tokens")
        aborted = completion.finish_reason == "abort"
        if not new and not aborted:
            raise RunFailed("rollout", f"an empty response that ended with {completion.finish_reason}")
        mask = np.zeros(before + new, np.int64)
        mask[before:] = 0 if aborted else 1  # the end of an aborted sample is missing: nothing can be said of it
        logprobs = np.zeros(before + new, np.float32)
        logprobs[before:] = completion.logprobs
        if not np.isfinite(logprobs).all():
            raise RunFailed("rollout", f"sample {index} has a log-prob that is not finite")
        return Sample(
            prompt_id=prompt.prompt_id,
            rollout_id=position * self._group_size + index,
            tokens=np.array([*prompt.token_ids, *completion.token_ids], np.int64),
            prompt_length=before,
            loss_mask=mask,
            rollout_logprobs=logprobs,
            finish_reason=completion.finish_reason,
            policy_version=completion.policy_version,
            response_text=completion.text,
            metrics={"aborted": float(aborted)},
        )

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
            answer = _in_thread(self._reward, prompt, text, prompt.label)
            try:
                return await asyncio.wait_for(answer, self._reward_timeout_s)
            except TimeoutError:
                summary = f"the reward function took longer than {self._reward_timeout_s:g} s"
                hint = "make it faster, or raise reward.timeout_s"
                raise RunFailed("reward", summary, hint) from None


def _in_thread(reward: Reward, prompt: Prompt, text: str, label: object) -> asyncio.Future[float]:
    """Calls `reward` in a daemon thread. Not in an executor: those are joined at exit, and a function that never
    returns would keep the whole run from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[float] = loop.create_future()

    def deliver(value: float | None, error: BaseException | None) -> None:
        if future.done():  # timed out or cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def call() -> None:
        value, error = None, None
        try:
            value = reward(prompt, text, label)
        except Exception as e:
            error = e
        try:
            loop.call_soon_threadsafe(deliver, value, error)
        except RuntimeError:
            pass  # the loop is closed: the run ended while the function was still busy

    threading.Thread(target=call, name="reward", daemon=True).start()
    return future
