"""The engines of a run: started, watched, told to make room, stopped. Each is an actor that owns one SGLang server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.backends.base import EngineAddress
from rlrun.plan.groups import POLICY
from rlrun.plan.types import RunPlan
from rlrun.runtime.actors import EngineActor
from rlrun.runtime.placement import Slots
from rlrun.runtime.supervise import Supervisor

ENGINE_GPU_SHARE = 0.2


class Fleet:
    """`addresses` and `actors` are those of `plan.engines`, once started. `model_dirs`: the folder of each model that
    engines of ours serve."""

    def __init__(self, plan: RunPlan, model_dirs: Mapping[str, str], log_dir: str, supervisor: Supervisor):
        self.plan = plan
        self.addresses: list[EngineAddress] = []
        self.actors: list[Any] = []
        self._model_dirs, self._log_dir, self._supervisor = model_dirs, log_dir, supervisor
        self._starts: list[tuple[str, Any]] = []

    # -- starting -------------------------------------------------------------------------------------------------

    def begin_start(self, slots: Slots) -> None:
        """Starts every server; `finish_start` waits for them."""
        import ray

        owner = ray.remote(EngineActor)
        for engine in self.plan.engines:
            options = slots.options(engine.slots[0], ENGINE_GPU_SHARE)
            actor = owner.options(max_concurrency=4, name=None, **options).remote(
                engine, self.plan, self._model_dirs[engine.model], self._log_dir, slots.gpus
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
        """Room for the policy's weights, which have no values before the next push."""
        self._call("resume_weights", "making room for new weights", frozen=False)

    def resume_cache(self) -> None:
        """The KV cache is there again, empty, and so are the weights of frozen models; the engines serve."""
        self._call("resume_weights", "taking their weights back", policy=False)
        self._call("resume_cache", "taking their GPU memory back")

    def _call(self, method: str, what: str, policy: bool = True, frozen: bool = True) -> None:
        """Of the engines that share GPUs with the trainer; others keep what they have."""
        calls = [
            (f"engine {e.index}", getattr(a, method).remote(self.plan.timeouts.sync_s))
            for e, a in zip(self.plan.engines, self.actors, strict=True)
            if e.offload and (policy if e.model == POLICY else frozen)
        ]
        self._supervisor.wait_all(calls, what, self.plan.timeouts.sync_s)
