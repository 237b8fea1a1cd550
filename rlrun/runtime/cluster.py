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
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from rlrun.backends.base import EngineAddress
from rlrun.backends.sglang.served import ServedModel
from rlrun.plan.groups import POLICY
from rlrun.plan.types import RunPlan
from rlrun.runtime.actors import RouterActor, TrainerActor
from rlrun.runtime.bundles import visible_without_reserved
from rlrun.runtime.external import Attached, ExternalActor
from rlrun.runtime.fleet import Fleet
from rlrun.runtime.placement import Slots, reserve
from rlrun.runtime.supervise import Supervisor
from rlrun.runtime.trainer_group import TrainerGroup
from rlrun.weight_sync.files import clean

TRAINER_GPU_SHARE = 0.4
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

    def __init__(
        self,
        plan: RunPlan,
        model_dir: str,
        run_dir: str,
        report: Callable[[str], None],
        served_dirs: Mapping[str, str] | None = None,
        attached: Attached | None = None,
    ):
        """`served_dirs`: the folder of each frozen model that engines of ours serve; `attached`: external servers."""
        self.plan, self.model_dir, self.run_dir = plan, model_dir, run_dir
        self.supervisor = Supervisor()
        self.attached = attached or Attached()
        self._log_dir = os.path.join(run_dir, "logs")
        self.fleet = Fleet(plan, {POLICY: model_dir, **(served_dirs or {})}, self._log_dir, self.supervisor)
        self._report = report
        self._router_urls: dict[str, str] = {}
        self._router_actors: list[Any] = []
        self._watchers: list[Any] = []
        self._trainer_actors: list[Any] = []
        self._slots = Slots()

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

    @property
    def engines(self) -> list[EngineAddress]:
        """Those of the policy: they get weights, and requests."""
        return self._serving(POLICY)

    @property
    def router_url(self) -> str | None:
        return self._router_urls.get(POLICY)

    def served(self) -> dict[str, ServedModel]:
        """The frozen models, as the user's functions reach them."""
        r, found = self.plan.rollout, {}
        for model in self.plan.deployment.models:
            url = self._router_urls.get(model.name) or self._serving(model.name)[0].url
            found[model.name] = ServedModel(model.name, model.path, url, r.request_timeout_s, r.max_retries)
        return found

    def _serving(self, model: str) -> list[EngineAddress]:
        """Servers that take requests for a model, ours first."""
        engines = zip(self.plan.engines, self.fleet.addresses, strict=True) if self.fleet.addresses else ()
        own = [address for engine, address in engines if engine.model == model and engine.type != "encoder"]
        return [*own, *(self.attached.policy if model == POLICY else self.attached.frozen.get(model, ()))]

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
        self._slots = reserve(self.plan)
        for engine in self.attached.all:
            watcher = ray.remote(ExternalActor).options(num_cpus=0).remote(engine.url)
            self._watchers.append(watcher)
            self.supervisor.watch(engine.name, watcher.wait_gone.remote())

    def _start_parts(self) -> TrainerGroup:
        """Engines and trainer start at the same time, as both take tens of seconds; where they share GPUs in turns,
        the engines first: a server sizes its KV cache by what it finds free."""
        os.makedirs(self._log_dir, exist_ok=True)
        began = time.monotonic()
        self.fleet.begin_start(self._slots)
        first = self.plan.rollout.offload or self.plan.train.offload
        if first:
            self._finish_engines(began)
        if self.plan.rollout.offload:
            self.fleet.release()
        trainer = self._start_trainer(began)
        if not first:
            self._finish_engines(began)
        self._start_routers()
        return trainer

    def _finish_engines(self, began: float) -> None:
        self.fleet.finish_start()
        count = len(self.plan.engines)
        if count:
            self._report(f"{count} SGLang engine{'s' * (count > 1)} ready ({time.monotonic() - began:.0f} s)")

    def _start_trainer(self, began: float) -> TrainerGroup:
        import ray

        plan, deadline = self.plan, self.plan.timeouts.start_s
        owner = ray.remote(TrainerActor)
        for rank, slot in enumerate(plan.train.slots):
            options = self._slots.options(slot, TRAINER_GPU_SHARE)
            self._trainer_actors.append(owner.options(**options).remote(plan, rank))
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
        return TrainerGroup(self._trainer_actors, infos, self.supervisor, plan.timeouts)

    def _start_routers(self) -> None:
        """One for each model that several servers take requests for."""
        import ray

        routers = {model.name: model.router for model in self.plan.deployment.models}
        deadline, calls = self.plan.timeouts.start_s, {}
        for name, router in {POLICY: self.plan.router, **routers}.items():
            if router is None:
                continue
            own = None if name == POLICY else name
            actor = ray.remote(RouterActor).options(max_concurrency=4, num_cpus=0).remote(router, self._log_dir, own)
            self._router_actors.append(actor)
            part = "router" if own is None else f"router {own}"
            calls[name] = part, actor, actor.start.remote(self._serving(name), deadline)
        urls = self.supervisor.wait_all([(part, start) for part, _, start in calls.values()], "starting", deadline)
        self._router_urls = dict(zip(calls, urls, strict=True))
        for part, actor, _ in calls.values():
            self.supervisor.watch(part, actor.wait_exit.remote())
        if calls:
            self._report("sglang-router ready" if len(calls) == 1 else f"{len(calls)} sglang-routers ready")

    # -- stopping -------------------------------------------------------------------------------------------------

    def stop(self, graceful: bool = False) -> None:
        """Ends every process of ours. Safe to call twice, and on a cluster that only half started."""
        import ray

        self.supervisor.stopping()
        if not ray.is_initialized():
            return
        owners = [*self._router_actors, *self.fleet.actors]
        stops = [actor.stop.remote() for actor in owners]
        if graceful:
            stops += [actor.close.remote() for actor in self._trainer_actors]
        if stops:
            with contextlib.suppress(Exception):
                ray.wait(stops, num_returns=len(stops), timeout=STOP_DEADLINE_S)
        for actor in [*self._trainer_actors, *owners, *self._watchers]:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self.fleet.actors, self._trainer_actors, self._router_actors, self._watchers = [], [], [], []
        clean(self.plan.sync, self.plan.name, self.run_dir)
        ray.shutdown()
