"""The engines of a run: started, watched, told to make room, stopped. Each is an actor that owns one SGLang server."""

from __future__ import annotations

from typing import Any

from rlrun.backends.base import EngineAddress
from rlrun.plan.types import RunPlan
from rlrun.runtime.actors import EngineActor
from rlrun.runtime.placement import Slots
from rlrun.runtime.supervise import Supervisor

ENGINE_GPU_SHARE = 0.2


class Fleet:
    """`addresses` and `actors` are those of `plan.engines`, once started."""

    def __init__(self, plan: RunPlan, model_dir: str, log_dir: str, supervisor: Supervisor):
        self.plan = plan
        self.addresses: list[EngineAddress] = []
        self.actors: list[Any] = []
        self._model_dir, self._log_dir, self._supervisor = model_dir, log_dir, supervisor
        self._starts: list[tuple[str, Any]] = []

    # -- starting -------------------------------------------------------------------------------------------------

    def begin_start(self, slots: Slots) -> None:
        """Starts every server; `finish_start` waits for them."""
        import ray

        owner = ray.remote(EngineActor)
        for engine in self.plan.engines:
            options = slots.options(engine.slots[0], ENGINE_GPU_SHARE)
            actor = owner.options(max_concurrency=4, name=None, **options).remote(
                engine, self.plan, self._model_dir, self._log_dir, slots.gpus
            )
            self.actors.append(actor)
        deadline = self.plan.timeouts.start_s
        self._starts = [
            (f"engine {e.index}", a.start.remote(deadline)) for e, a in zip(self.plan.engines, self.actors, strict=True)
        ]

    def finish_start(self) -> None:
        """Raises RunFailed when a server does not come up."""
        self.addresses = self._supervisor.wait_all(self._starts, "starting", self.plan.timeouts.start_s)
        for engine, actor in zip(self.plan.engines, self.actors, strict=True):
            self._supervisor.watch(f"engine {engine.index}", actor.wait_exit.remote())

    # -- taking turns ---------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Weights and KV cache leave the GPUs. The engines must be idle; they answer no request until both are back."""
        self._call("release_memory", "making room for the trainer")

    def resume_weights(self) -> None:
        """Room for the weights, which have no values before the next push."""
        self._call("resume_weights", "making room for new weights")

    def resume_cache(self) -> None:
        """The KV cache is there again, empty; the engines serve."""
        self._call("resume_cache", "taking their GPU memory back")

    def _call(self, method: str, what: str) -> None:
        calls = [
            (f"engine {e.index}", getattr(a, method).remote(self.plan.timeouts.sync_s))
            for e, a in zip(self.plan.engines, self.actors, strict=True)
        ]
        self._supervisor.wait_all(calls, what, self.plan.timeouts.sync_s)
