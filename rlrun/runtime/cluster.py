"""RunPlan -> Ray actors. The plan has decided every slot; this only realises it.

A run with one node brings up its own Ray on this machine, and takes it down again; RAY_ADDRESS joins a cluster that
is already there. On cpu the actors ask Ray for no resources, because slots are processes; on cuda one placement
group holds a one-GPU bundle for each slot, and slot order is (node, GPU id).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from rlrun.backends.base import EngineAddress
from rlrun.errors import RunFailed
from rlrun.plan.types import RunPlan
from rlrun.runtime.actors import EngineActor, RouterActor, TrainerActor
from rlrun.runtime.bundles import in_slot_order, misplaced, visible_without_reserved
from rlrun.runtime.supervise import Supervisor
from rlrun.runtime.trainer_group import TrainerGroup
from rlrun.weight_sync.files import clean

TRAINER_GPU_SHARE = 0.4
ENGINE_GPU_SHARE = 0.2
STOP_DEADLINE_S = 20.0


@contextlib.contextmanager
def _visible_gpus(plan: RunPlan | None) -> Iterator[None]:
    """Hides the plan's reserved GPUs from a Ray that is started meanwhile; None hides nothing."""
    name = "CUDA_VISIBLE_DEVICES"
    before = os.environ.get(name)
    now = visible_without_reserved(plan, before) if plan is not None else before
    if now is not None:
        os.environ[name] = now
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif now is not None:
            del os.environ[name]


class Cluster:
    """Everything of ours that runs outside the driver. A context manager: leaving it leaves nothing behind."""

    def __init__(self, plan: RunPlan, model_dir: str, run_dir: str, report: Callable[[str], None]):
        self.plan, self.model_dir, self.run_dir = plan, model_dir, run_dir
        self.supervisor = Supervisor()
        self.engines: list[EngineAddress] = []
        self.router_url: str | None = None
        self._report = report
        self._engine_actors: list[Any] = []
        self._router_actor: Any = None
        self._trainer_actors: list[Any] = []
        self._slot_bundles: list[tuple[int, str]] = []
        self._placement_group: Any = None

    def __enter__(self) -> Cluster:
        try:
            self._start_ray()
            self.trainer = self._start_parts()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop(graceful=kind is None)

    # -- starting -------------------------------------------------------------------------------------------------

    def _start_ray(self) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # The supervisor reports failures, once; Ray would print each again at shutdown.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
        import ray

        began = time.monotonic()
        # Not None: that would join any Ray that somebody else has started on this machine.
        address = os.environ.get("RAY_ADDRESS", "local")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            gpus = None if self.plan.device == "cuda" else 0
            options.update(include_dashboard=False, num_gpus=gpus, num_cpus=os.cpu_count())
        with _visible_gpus(self.plan if address == "local" else None):
            ray.init(address=address, **options)
        self._report(f"Ray is up ({time.monotonic() - began:.0f} s)")
        if self.plan.device == "cuda":
            self._reserve_gpus()

    def _reserve_gpus(self) -> None:
        """One bundle a slot, then the physical place of each, sorted as the plan numbers slots."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        need, have = len(self.plan.slots), int(ray.cluster_resources().get("GPU", 0))
        if have < need:
            raise RunFailed(
                "placement", f"the plan needs {need} GPUs, Ray sees {have}", "change placement.* or the cluster"
            )
        self._placement_group = placement_group([{"GPU": 1, "CPU": 1}] * need, strategy="PACK")
        ready, _ = ray.wait([self._placement_group.ready()], timeout=self.plan.timeouts.start_s)
        if not ready:
            free = ray.available_resources()
            raise RunFailed(
                "placement",
                f"{need} bundles of 1 GPU + 1 CPU were not granted in {self.plan.timeouts.start_s:g} s; "
                f"free now: {free.get('GPU', 0):g} GPUs, {free.get('CPU', 0):g} CPUs",
            )

        @ray.remote(num_cpus=0, num_gpus=0.01)
        def probe() -> tuple[str, int]:
            context = ray.get_runtime_context()
            return ray.util.get_node_ip_address(), int(context.get_accelerator_ids()["GPU"][0])

        places = ray.get(
            [
                probe.options(
                    scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement_group, bundle)
                ).remote()
                for bundle in range(need)
            ]
        )
        order = in_slot_order(places)
        why = misplaced(self.plan, [places[b] for b in order], ids_are_physical="RAY_ADDRESS" in os.environ)
        if why is not None:
            raise RunFailed("placement", why, "change placement.* to what the cluster has, or free those GPUs")
        self._slot_bundles = [(bundle, str(places[bundle][1])) for bundle in order]

    def _on_slot(self, slot: int, share: float) -> dict[str, Any]:
        """Ray options that put an actor on a slot."""
        if self._placement_group is None:
            return {"num_cpus": 0}
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._placement_group, self._slot_bundles[slot][0])
        return {"num_cpus": 0, "num_gpus": share, "scheduling_strategy": strategy}

    def _start_parts(self) -> TrainerGroup:
        """Engines and trainer start at the same time; both take tens of seconds."""
        import ray

        plan, deadline = self.plan, self.plan.timeouts.start_s
        log_dir = os.path.join(self.run_dir, "logs")
        os.makedirs(log_dir, exist_ok=True)
        began = time.monotonic()
        engine_class, trainer_class = ray.remote(EngineActor), ray.remote(TrainerActor)
        gpus = [gpu for _, gpu in self._slot_bundles]
        for engine in plan.engines:
            options = self._on_slot(engine.slots[0], ENGINE_GPU_SHARE)
            actor = engine_class.options(max_concurrency=4, name=None, **options).remote(
                engine, plan, self.model_dir, log_dir, gpus
            )
            self._engine_actors.append(actor)
        starts = [
            (f"engine {e.index}", a.start.remote(deadline))
            for e, a in zip(plan.engines, self._engine_actors, strict=True)
        ]
        for rank, slot in enumerate(plan.train.slots):
            self._trainer_actors.append(
                trainer_class.options(**self._on_slot(slot, TRAINER_GPU_SHARE)).remote(plan, rank)
            )
        first = [("trainer rank 0", self._trainer_actors[0].rendezvous.remote())]
        host, port = self.supervisor.wait_all(first, "starting", deadline)[0]
        joins = [
            (f"trainer rank {rank}", actor.start.remote(host, port, self.model_dir))
            for rank, actor in enumerate(self._trainer_actors)
        ]
        infos = self.supervisor.wait_all(joins, "starting", deadline)
        self._report(f"{len(infos)} Megatron rank{'s' * (len(infos) > 1)} ready ({time.monotonic() - began:.0f} s)")
        for note in infos[0].notes:
            self._report(note)
        self.engines = self.supervisor.wait_all(starts, "starting", deadline)
        if starts:
            self._report(
                f"{len(starts)} SGLang engine{'s' * (len(starts) > 1)} ready ({time.monotonic() - began:.0f} s)"
            )
        for engine, actor in zip(plan.engines, self._engine_actors, strict=True):
            self.supervisor.watch(f"engine {engine.index}", actor.wait_exit.remote())
        self._start_router(log_dir)
        return TrainerGroup(self._trainer_actors, infos, self.supervisor, plan.timeouts)

    def _start_router(self, log_dir: str) -> None:
        if self.plan.router is None:
            return
        import ray

        deadline = self.plan.timeouts.start_s
        self._router_actor = ray.remote(RouterActor).options(max_concurrency=4, num_cpus=0).remote(self.plan, log_dir)
        call = [("router", self._router_actor.start.remote(self.engines, deadline))]
        self.router_url = self.supervisor.wait_all(call, "starting", deadline)[0]
        self.supervisor.watch("router", self._router_actor.wait_exit.remote())
        self._report("sglang-router ready")

    # -- stopping -------------------------------------------------------------------------------------------------

    def stop(self, graceful: bool = False) -> None:
        """Ends every process of ours. Safe to call twice, and on a cluster that only half started."""
        import ray

        self.supervisor.stopping()
        if not ray.is_initialized():
            return
        owners = [*([self._router_actor] if self._router_actor else []), *self._engine_actors]
        stops = [actor.stop.remote() for actor in owners]
        if graceful:
            stops += [actor.close.remote() for actor in self._trainer_actors]
        if stops:
            with contextlib.suppress(Exception):
                ray.wait(stops, num_returns=len(stops), timeout=STOP_DEADLINE_S)
        for actor in [*self._trainer_actors, *owners]:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._engine_actors, self._trainer_actors, self._router_actor = [], [], None
        clean(self.plan.sync, self.plan.name, self.run_dir)
        ray.shutdown()
