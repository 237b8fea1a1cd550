"""SGLang servers without a run around them: started, asked, and compared with each other."""

from __future__ import annotations

import math
import sys
import time
import urllib.error
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _common import Part

from rlrun.backends.base import EngineAddress
from rlrun.backends.sglang.args import LAUNCH
from rlrun.backends.sglang.server import ServerProcess, http_json
from rlrun.plan.types import RunPlan


def text(plan: RunPlan, longest: int = 200) -> list[int]:
    """Characters of the tokenizer, as many as a sample can have, for log-probs."""
    length = min(longest, plan.rollout.max_prompt_tokens + plan.rollout.max_response_tokens)
    return [1, *(3 + (7 * i + i * i) % 11 for i in range(length - 1))]


@contextmanager
def serving(part: Part, servers: Sequence[ServerProcess]) -> Iterator[list[EngineAddress]]:
    """Starts them together; stops them whatever happens, and keeps the logs of a failure."""
    try:
        for server in servers:
            server.start()
        yield [server.wait_ready(part.left_s()) for server in servers]
    except BaseException:
        for i, server in enumerate(servers):
            part.keep(server.log_path, f"server_{i}.log")
        raise
    finally:
        for server in servers:
            server.stop()


def server(part: Part, plan: RunPlan, name: str, kind: type[ServerProcess] = ServerProcess) -> ServerProcess:
    """The plan's first engine."""
    return kind(plan.engines[0], plan, str(plan.model.path), str(part.folder(name)))


def post(engine: EngineAddress, path: str, body: dict[str, Any], timeout_s: float = 120.0) -> Any:
    try:
        answer = http_json(engine.url + path, body, timeout_s)
    except urllib.error.HTTPError as e:
        raise RuntimeError(f"{path}: HTTP {e.code}: {e.read().decode(errors='replace')[:200]}") from None
    if isinstance(answer, dict) and answer.get("success") is False:
        raise RuntimeError(f"{path}: {answer.get('message', answer)}")
    return answer


def scores(engine: EngineAddress, tokens: Sequence[int]) -> list[float]:
    """Log-probs of tokens[1:]."""
    params = {"temperature": 1.0, "max_new_tokens": 0}
    body = {"input_ids": list(tokens), "sampling_params": params, "return_logprob": True, "logprob_start_len": 0}
    return [float(entry[0]) for entry in post(engine, "/generate", body)["meta_info"]["input_token_logprobs"][1:]]


def apart(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """(mean, largest) absolute difference; NaN is the largest of all."""
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    if any(math.isnan(d) for d in differences):
        return math.inf, math.inf
    return sum(differences) / len(differences), max(differences)


def checksums(engine: EngineAddress) -> list[dict[str, str]]:
    """Name -> hash of every weight, of each rank of the engine: SGLang's own, on its GPU. CUDA only."""
    answer = post(engine, "/weights_checker", {"action": "checksum"})
    return [rank["checksums"] for rank in answer["ranks"]]


def overwrite(engine: EngineAddress) -> None:
    """Random numbers in all weights, so that what is loaded next has to be loaded whole. CUDA only."""
    post(engine, "/weights_checker", {"action": "reset_tensors"})


def load(engine: EngineAddress, folder: Path, version: int) -> None:
    body = {"model_path": str(folder), "load_format": "auto", "weight_version": str(version), "flush_cache": True}
    post(engine, "/update_weights_from_disk", body)


def differing(one: list[dict[str, str]], other: list[dict[str, str]]) -> int:
    """Weights whose hashes differ, or that only one of both has, over all ranks."""
    return sum(a.get(name) != b.get(name) for a, b in zip(one, other, strict=True) for name in a.keys() | b.keys())


def generate(
    engine: EngineAddress, prompts: Sequence[Sequence[int]], tokens: int, timeout_s: float
) -> tuple[int, float]:
    """One request for all of them, with log-probs, as a rollout samples: (tokens made, seconds)."""
    params = {"temperature": 1.0, "max_new_tokens": tokens, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    body = {"input_ids": [list(p) for p in prompts], "sampling_params": params, "return_logprob": True}
    began = time.perf_counter()
    answers = post(engine, "/generate", body, timeout_s)
    seconds = time.perf_counter() - began
    return sum(len(answer["output_ids"]) for answer in answers), seconds


class BareServer(ServerProcess):
    """The same command line without rlrun's launcher and hooks. On a CPU SGLang does not start without these."""

    def spawn(self, command: Sequence[str], env: dict[str, str]) -> None:
        own = (sys.executable, *LAUNCH, "server")
        assert tuple(command[: len(own)]) == own, command
        if self._plan.device == "cuda":
            command = [sys.executable, "-m", "sglang.launch_server", *command[len(own) :]]
        super().spawn(command, env)
