"""One real SGLang server for a checkpoint of any family, with the arguments that a plan gives it: for tests.

with FamilyEngine("glm4_moe", model_dir, log_dir) as engine:
    engine.score([1, 5, 7])           # log-probs of [5, 7], given what comes before
    engine.push(named_tensors)        # a whole weight sync, by value or gloo
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from rlrun.backends.base import Completion, EngineAddress, GenerateRequest
from rlrun.backends.sglang.client import SglangClient
from rlrun.backends.sglang.server import ServerProcess, http_json
from rlrun.plan.build import load_plan
from rlrun.plan.types import RunPlan, SyncPlan
from rlrun.weight_sync.senders import make_sender

START_S = 240.0


def family_plan(family: str, overrides: Sequence[str] = ()) -> RunPlan:
    """The plan of `model=tiny_<family>` on one CPU. What it says of the server is what a run would start."""
    words = ["+experiment=quickstart", f"model=tiny_{family}", "rollout.max_prompt_tokens=64"]
    return load_plan([*words, "rollout.max_response_tokens=64", *overrides])


class FamilyEngine:
    """A server of `family` (conf/model/tiny_<family>.yaml) that loads `model_dir`; its log goes to
    `<log_dir>/engine_0.log`. `overrides` are words of the command line, e.g. `model.dtype=bfloat16`.

    A context manager: starts on entry and waits until the server is ready, stops on exit. To start several beside one
    another call `start`, then `wait`.
    """

    def __init__(self, family: str, model_dir: str, log_dir: str, overrides: Sequence[str] = ()):
        self.plan = family_plan(family, overrides)
        self.server = ServerProcess(self.plan.engines[0], self.plan, model_dir, log_dir)
        self.version = 0

    def __enter__(self) -> FamilyEngine:
        self.start()
        try:
            return self.wait()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> None:
        self.server.start()

    def wait(self) -> FamilyEngine:
        self.server.wait_ready(START_S)
        return self

    def stop(self) -> None:
        self.server.stop()

    @property
    def address(self) -> EngineAddress:
        return self.server.address

    def score(self, token_ids: Sequence[int]) -> np.ndarray:
        """Log-probs [T - 1] of token_ids[1:] at temperature 1."""
        return np.array(self._use(lambda client: client.score(list(token_ids), 0)))

    def generate(self, prompt: Sequence[int], seeds: Sequence[int], tokens: int = 12) -> list[Completion]:
        """One sample for each seed, with its log-probs; decode kernels, where `score` runs prefill kernels."""
        request = GenerateRequest(tuple(prompt), tuple(seeds), 1.0, tokens)
        return self._use(lambda client: client.generate(request))

    def push(
        self,
        named_tensors: Iterable[tuple[str, torch.Tensor]],
        expected: Sequence[str] | None = None,
        backend: str = "value",
        bucket_bytes: int = 1 << 26,
    ) -> dict[str, float]:
        """One weight sync of rlrun under the next version; `backend` is value or gloo. `expected` are the names that
        have to arrive, by default those given."""
        if expected is None:
            named_tensors = list(named_tensors)
            expected = [name for name, _ in named_tensors]
        self.version += 1
        sender = make_sender(SyncPlan("tensor", backend, bucket_bytes, "version", 0), [self.address], "cpu", 60.0)
        sender.connect()
        try:
            return sender.send(named_tensors, self.version, expected)
        finally:
            sender.close()

    def load_from_disk(self, model_dir: str) -> None:
        """SGLang's own update from a checkpoint on disk."""
        answer = http_json(f"{self.address.url}/update_weights_from_disk", {"model_path": model_dir}, 180.0)
        assert answer["success"], answer

    def _use(self, call):
        async def main():
            client = SglangClient([self.address], None, self.plan.rollout)
            try:
                return await call(client)
            finally:
                await client.close()

        return asyncio.run(main())
