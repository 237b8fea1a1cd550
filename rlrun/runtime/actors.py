"""The Ray actors of a run. Each owns one piece of the real thing: a Megatron rank, an SGLang server, the router.

They are thin: everything they do is in `rlrun.backends`. Heavy imports happen inside methods, in the actor's own
process. A server is a child of its actor and dies with it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from rlrun.backends.base import EngineAddress, RankInfo, Rendezvous, TrainMetrics
from rlrun.data.types import TokenBatch, TrainBatch, ValueBatch
from rlrun.plan.types import EnginePlan, RouterPlan, RunPlan


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


class TrainerActor:
    """One Megatron rank."""

    def __init__(self, plan: RunPlan, rank: int):
        self._plan, self._rank = plan, rank
        self._backend: Any = None

    def rendezvous(self) -> tuple[str, int]:
        """Rank 0 only: where the others meet it."""
        from rlrun.backends.sglang.server import own_host

        return own_host(self._plan.num_nodes), free_port()

    def start(self, host: str, port: int, model_dir: str) -> RankInfo:
        from rlrun.backends.megatron.trainer import MegatronTrainer

        self._backend = MegatronTrainer(self._plan)
        world = len(self._plan.train.slots)
        return self._backend.start(Rendezvous(self._rank, world, host, port), model_dir)

    def logprobs(self, batch: TokenBatch, model: str) -> list:
        return self._backend.logprobs(batch, model)

    def train_step(self, batch: TrainBatch) -> TrainMetrics:
        return self._backend.train_step(batch)

    def values(self, batch: TokenBatch) -> list:
        return self._backend.values(batch)

    def value_step(self, batch: ValueBatch) -> TrainMetrics:
        return self._backend.value_step(batch)

    def park(self, keep_weights: bool) -> float:
        return self._backend.park(keep_weights)

    def unpark(self, weights_only: bool = False) -> float:
        return self._backend.unpark(weights_only)

    def memory(self) -> dict[str, float]:
        return self._backend.memory()

    def connect_engines(self, engines: Sequence[EngineAddress], run_dir: str) -> None:
        self._backend.connect_engines(engines, run_dir)

    def publish(self, engines: Sequence[EngineAddress], version: int) -> dict[str, float]:
        return self._backend.publish(engines, version)

    def save(self, directory: str) -> None:
        self._backend.save(directory)

    def begin_save(self, directory: str) -> None:
        self._backend.begin_save(directory)

    def save_done(self) -> bool:
        return self._backend.save_done()

    def finish_save(self) -> float:
        return self._backend.finish_save()

    def load(self, directory: str) -> None:
        self._backend.load(directory)

    def export_hf(self, directory: str) -> None:
        self._backend.export_hf(directory)

    def digest(self) -> dict[str, str]:
        return self._backend.digest()

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()


class EngineActor:
    """Owner of one SGLang server process."""

    def __init__(self, engine: EnginePlan, plan: RunPlan, model_dir: str, log_dir: str, slot_gpus: Sequence[str]):
        """`slot_gpus` are the GPU ids behind all of the plan's slots; empty on cpu."""
        from rlrun.backends.sglang.server import ServerProcess

        self._server = ServerProcess(engine, plan, model_dir, log_dir, slot_gpus=slot_gpus)

    def start(self, deadline_s: float) -> EngineAddress:
        self._server.start()
        self._server.wait_ready(deadline_s)
        return self._server.address

    def release_memory(self, deadline_s: float) -> None:
        self._server.release_memory(deadline_s)

    def resume_weights(self, deadline_s: float) -> None:
        self._server.resume_memory(("weights",), deadline_s)

    def resume_cache(self, deadline_s: float) -> None:
        self._server.resume_memory(("kv_cache", "cuda_graph"), deadline_s)

    def wait_exit(self) -> str:
        """Returns, with the reason, once the server is gone; runs beside the other methods."""
        return self._server.wait_exit()

    def stop(self) -> None:
        self._server.stop()


class RouterActor:
    """Owner of the sglang-router process of one model; `model` is None for the policy."""

    def __init__(self, router: RouterPlan, log_dir: str, model: str | None = None):
        from rlrun.backends.sglang.server import RouterProcess

        self._router = RouterProcess(router, log_dir, model=model)

    def start(self, engines: Sequence[EngineAddress], deadline_s: float) -> str:
        self._router.start(engines)
        return self._router.wait_ready(deadline_s)

    def wait_exit(self) -> str:
        return self._router.wait_exit()

    def stop(self) -> None:
        self._router.stop()
