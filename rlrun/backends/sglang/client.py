"""RolloutBackend over HTTP: one request to SGLang for each group, ids in and ids out.

sglang-router takes a batch of prompts, but only one set of sampling parameters for all of it, so a seeded group goes
through the router as one request a sample. Sampling parameters are always sent, so that no checkpoint's
generation_config.json fills them in. The log-probs that SGLang returns are those of the whole distribution at the
sampling temperature, which is the one sampled from unless an evaluation cuts it with top-p or top-k.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import aiohttp

from rlrun.backends.base import Completion, EngineAddress, GenerateRequest
from rlrun.backends.sglang.served import input_logprobs
from rlrun.errors import RunFailed
from rlrun.plan.types import RolloutPlan

BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0
KEEP_ALIVE_S = 3.0
"""Below the 5 s after which SGLang closes an idle connection."""

FINISH = {"stop": "stop", "length": "length", "abort": "abort"}


class SglangClient:
    """Implements RolloutBackend. Belongs to one event loop; not thread-safe."""

    def __init__(self, engines: Sequence[EngineAddress], router_url: str | None, rollout: RolloutPlan):
        assert engines, "a client without engines"
        self._engines = {engine.index: engine for engine in engines}
        self._rollout = rollout
        targets = [("router", router_url)] if router_url else [(_name(e), e.url) for e in engines]
        self._by_sample = router_url is not None
        self._targets = itertools.cycle(targets)
        self._session: aiohttp.ClientSession | None = None

    async def generate(self, request: GenerateRequest) -> list[Completion]:
        """One Completion for each seed, in order.

        Raises RunFailed when a request fails `max_retries` + 1 times, or at once when the engine refuses it (4xx).
        """
        self._check(request)
        answers = await asyncio.gather(*(self._post_generate(body) for body in self._bodies(request)))
        flat = [answer for item in answers for answer in (item if isinstance(item, list) else [item])]
        if len(flat) != len(request.seeds):
            raise RunFailed("rollout", f"{len(flat)} answers to a request for {len(request.seeds)} samples")
        return [to_completion(answer) for answer in flat]

    async def score(self, token_ids: Sequence[int], engine: int) -> list[float]:
        """Log-probs of token_ids[1:] under one engine at temperature 1."""
        address = self._engines[engine]
        body = {
            "input_ids": list(token_ids),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = await self._request("POST", itertools.repeat((_name(address), address.url)), "/generate", body)
        return input_logprobs(answer["meta_info"]["input_token_logprobs"], token_ids, _name(address))

    async def versions(self) -> list[int]:
        """Weight version of every engine, in the order given."""
        answers = await asyncio.gather(
            *(self._request("GET", itertools.repeat((_name(e), e.url)), "/model_info") for e in self._engines.values())
        )
        return [to_version(answer["weight_version"]) for answer in answers]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _check(self, request: GenerateRequest) -> None:
        # SGLang ignores a seed it is not set up for, and gives every request without one the same seed.
        seeds = request.seeds
        assert request.token_ids, "a request without a prompt"
        assert seeds, "a request without samples"
        if not self._rollout.seeded:
            assert all(seed is None for seed in seeds), "seeds without rollout.seeded"
        elif request.temperature > 0:
            assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds), (
                "rollout.seeded needs seeds, 0..2**63-1"
            )

    def _bodies(self, request: GenerateRequest) -> list[dict[str, Any]]:
        params: dict[str, Any] = {
            "temperature": request.temperature,
            "max_new_tokens": request.max_new_tokens,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": 0.0,
        }
        if request.stop:
            params["stop"] = list(request.stop)
        ids, n = list(request.token_ids), len(request.seeds)
        if all(seed is None for seed in request.seeds):
            return [{"input_ids": [ids] * n, "sampling_params": params, "return_logprob": True}]
        each = [params if seed is None else {**params, "sampling_seed": seed} for seed in request.seeds]
        if self._by_sample:
            return [{"input_ids": ids, "sampling_params": p, "return_logprob": True} for p in each]
        return [{"input_ids": [ids] * n, "sampling_params": each, "return_logprob": True}]

    async def _post_generate(self, body: dict[str, Any]) -> Any:
        return await self._request("POST", self._targets, "/generate", body)

    async def _request(self, method: str, targets, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer's JSON. Tries again, on the next target, after a lost connection, a timeout, 429 or 5xx."""
        attempts = self._rollout.max_retries + 1
        for attempt in range(attempts):
            part, url = next(targets)
            try:
                return await self._once(method, part, url + path, body)
            except (aiohttp.ClientError, TimeoutError, ConnectionError, _Busy) as e:
                reason = _describe(e, self._rollout.request_timeout_s)
            if attempt + 1 < attempts:
                await asyncio.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2**attempt))
        raise RunFailed(
            part,
            f"{method} {path} to {url} failed {attempts} times, last with: {reason}",
            f"see the log of {part} in the run folder",
        )

    async def _once(self, method: str, part: str, url: str, body: dict[str, Any] | None) -> Any:
        timeout = aiohttp.ClientTimeout(total=self._rollout.request_timeout_s)
        async with self._open_session().request(method, url, json=body, timeout=timeout) as response:
            if response.status == 200:
                return await response.json()
            text = (await response.text())[:500]
            if response.status == 429 or response.status >= 500:
                raise _Busy(f"HTTP {response.status}: {text}")
            raise RunFailed(part, f"refused {method} {url} with HTTP {response.status}: {text}")

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session


class _Busy(Exception):
    """The server answered, but may do better next time."""


def to_completion(answer: dict[str, Any]) -> Completion:
    """SGLang's answer for one sample. Token ids come from the log-prob entries [log-prob, id, text], so that the two
    cannot disagree; they include the stop token, with its log-prob."""
    meta = answer["meta_info"]
    reason = meta["finish_reason"]
    if reason is None or reason["type"] not in FINISH:
        raise RunFailed("rollout", f"SGLang returned an unknown finish reason {reason!r}")
    entries = meta.get("output_token_logprobs") or []
    token_ids = tuple(int(entry[1]) for entry in entries)
    if token_ids != tuple(answer["output_ids"]):
        raise RunFailed("rollout", f"{len(entries)} log-probs do not match {len(answer['output_ids'])} sampled ids")
    return Completion(
        token_ids=token_ids,
        logprobs=tuple(float(entry[0]) for entry in entries),
        finish_reason=FINISH[reason["type"]],
        policy_version=to_version(meta["weight_version"]),
        text=answer["text"],
        extra={"cached_tokens": meta.get("cached_tokens", 0), "latency_s": meta.get("e2e_latency", 0.0)},
    )


def to_version(text: str) -> int:
    """The policy version in SGLang's `weight_version`. Raises RunFailed when somebody else wrote it."""
    try:
        return int(text)
    except ValueError:
        raise RunFailed("rollout", f"an engine reports weight version {text!r}, which is no policy version") from None


def _name(engine: EngineAddress) -> str:
    return engine.name


def _describe(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    return f"{type(error).__name__}: {error}" if not isinstance(error, _Busy) else str(error)
