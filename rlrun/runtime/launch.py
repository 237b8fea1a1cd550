"""RunPlan -> a finished run. `run` starts one, `resume` goes on with one that stopped; both return an exit code.

Everything that can be wrong is looked at before Ray starts: packages, GPUs, the model folder, the tokenized prompts.
Whatever happens after that, every process of ours is ended, MLflow is told how the run ended, and summary.json says
the same for scripts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlrun.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, RlrunError, RunFailed
from rlrun.plan.types import RunPlan
from rlrun.runtime.checkpoint import CheckpointStore, RunState
from rlrun.runtime.preflight import check_machine, stage_model, stage_served
from rlrun.runtime.progress import Progress, shown
from rlrun.runtime.summary import Outcome, print_outcome, write_summary

EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends the run as Ctrl-C does."""


@dataclass(frozen=True)
class Start:
    """From where: a new run folder, or one to go on with."""

    run_dir: str
    state: RunState | None = None
    checkpoint: str | None = None


def run(plan: RunPlan) -> int:
    """Starts a new run in <output_dir>/<name>/<time>. Raises RlrunError when it cannot be started as planned."""
    check_machine(plan)
    outcome = execute(plan, Start(new_run_dir(plan)))
    print_outcome(outcome)
    return outcome.exit_code


def resume(run_dir: str, overrides: list[str]) -> int:
    """Goes on with a stopped, failed or killed run, from its newest checkpoint, in the same folder and MLflow run."""
    from rlrun.runtime.resume import resume_plan

    plan, state, checkpoint = resume_plan(run_dir, overrides)
    check_machine(plan)
    outcome = execute(plan, Start(os.path.abspath(run_dir), state, checkpoint))
    print_outcome(outcome)
    return outcome.exit_code


def new_run_dir(plan: RunPlan) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = os.path.join(plan.output_dir, plan.name, stamp)
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        with contextlib.suppress(FileExistsError):
            os.makedirs(base + suffix)
            return base + suffix
    raise AssertionError(f"no free folder name at {base}")


def write_plan(plan: RunPlan, run_dir: str) -> None:
    """plan.json is what resume reads; config.yaml is for people."""
    import yaml

    from rlrun.plan.build import plan_to_json

    for name, text in (
        ("plan.json", plan_to_json(plan)),
        ("config.yaml", yaml.safe_dump(plan.resolved_config, sort_keys=False)),
    ):
        path = os.path.join(run_dir, name)
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(path + ".tmp", path)


def execute(plan: RunPlan, start: Start, parent_run_id: str | None = None, label: str | None = None) -> Outcome:
    """The run, from its folder to its summary.json. Raises nothing: how it ended is in the outcome."""
    progress = Progress()
    outcome = Outcome(
        plan=plan, run_dir=start.run_dir, began=time.time(), restored_step=start.state.step if start.state else 0
    )
    progress.note(f"run {shown(start.run_dir)}  (config {plan.config_hash})")
    tracking: Future[Any] | None = None
    trackers: Any = None
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracking")
    with terminate_as_interrupt():
        try:
            write_plan(plan, start.run_dir)
            tracking = pool.submit(_open_trackers, plan, start, parent_run_id, label)
            _train(plan, start, outcome, progress, tracking)
            outcome.status = "finished" if outcome.step >= plan.num_steps else "stopped"
            outcome.exit_code = EXIT_OK
        except RlrunError as e:
            outcome.fail("failed", e.exit_code, error=e)
        except RunFailed as e:
            outcome.fail("failed", EXIT_RUN_FAILED, error=e)
        except KeyboardInterrupt as e:
            code = EXIT_TERMINATED if isinstance(e, Terminated) else EXIT_INTERRUPTED
            outcome.fail("killed", code, error=e)
        except BaseException as e:
            _write_traceback(start.run_dir)
            last = (str(e).strip().splitlines() or [""])[-1]
            outcome.fail("failed", EXIT_RUN_FAILED, error=RunFailed("rlrun", f"{type(e).__name__}: {last}"))
        finally:
            if tracking is not None:
                with contextlib.suppress(BaseException):
                    trackers, outcome.mlflow_run_id = tracking.result(timeout=60)
                    trackers.close(outcome.mlflow_status)
            pool.shutdown(wait=False)
    outcome.wall_s = time.time() - outcome.began
    write_summary(outcome)
    return outcome


def _train(plan: RunPlan, start: Start, outcome: Outcome, progress: Progress, tracking: Future[Any]) -> None:
    """The run proper, inside the lifetime of the cluster."""
    import asyncio

    from rlrun.backends.sglang.client import SglangClient
    from rlrun.runtime.assemble import assemble
    from rlrun.runtime.cluster import Cluster
    from rlrun.runtime.external import attach
    from rlrun.runtime.inputs import load_inputs
    from rlrun.runtime.loop import train

    model_dir, served_dirs = stage_model(plan, start.run_dir), stage_served(plan)
    inputs = load_inputs(plan, model_dir)
    attached = attach(plan, model_dir)
    for engine in attached.all:
        progress.note(f"attached {engine.name}")
    ranks, engines = len(plan.train.slots), len(plan.engines)
    and_engines = f" and {engines} engine" if engines else ""
    noun = "process" if ranks + engines == 1 else "processes"
    progress.note(f"starting {ranks} trainer{and_engines} {noun} on {plan.device}")
    with (
        Cluster(plan, model_dir, start.run_dir, progress.note, served_dirs, attached) as cluster,
        asyncio.Runner() as runner,
    ):
        inputs.models.update(cluster.served())
        client = SglangClient(cluster.engines, cluster.router_url, plan.rollout) if cluster.engines else None
        trackers, outcome.mlflow_run_id = tracking.result()
        store = CheckpointStore.of(start.run_dir, plan.checkpoint)
        store.clean()
        run_ = assemble(
            plan, cluster, inputs, trackers, store, progress, runner, client, mlflow_run_id=outcome.mlflow_run_id
        )
        if plan.sync is not None:
            cluster.trainer.connect_engines(cluster.engines, start.run_dir)
        outcome.startup_s = time.time() - outcome.began
        if start.state is not None and start.checkpoint is not None:
            _restore(run_, start.state, start.checkpoint, cluster)
        try:
            train(run_)
        finally:
            outcome.step, outcome.checkpoint = run_.step, run_.last_checkpoint
            if client is not None:
                runner.run(client.close())
        if plan.checkpoint.hf_at_end and run_.step >= plan.num_steps:
            run_.turns.train()
            outcome.hf_checkpoint = store.export_last_hf(cluster.trainer)
        for engine in attached.policy:
            progress.note(f"{engine.name} is left running, with the weights of step {run_.step}")
        progress.note("stopping")


def _restore(run_: Any, state: RunState, checkpoint: str, cluster: Any) -> None:
    cluster.trainer.load(os.path.join(checkpoint, "megatron"))
    run_.source.load_state_dict(state.source)
    run_.buffer = run_.store.load_buffer(checkpoint)
    run_.step, run_.optimizer_steps = state.step, state.optimizer_steps
    # A run that had learned before it stopped has learned.
    run_.last_checkpoint, run_.learned = checkpoint, True
    run_.progress.note(f"restored step {run_.step} from {shown(checkpoint)}")


def _open_trackers(plan: RunPlan, start: Start, parent_run_id: str | None, label: str | None) -> tuple[Any, str | None]:
    """metrics.jsonl always, MLflow when the plan has it. Slow (a new database migrates), hence in a thread."""
    from rlrun.tracking.base import JsonlTracker, Trackers

    resumed = start.state.step if start.state else None
    trackers: list[Any] = [JsonlTracker(os.path.join(start.run_dir, "metrics.jsonl"), resumed)]
    run_id = None
    if plan.tracking is not None:
        from rlrun.runtime.preflight import versions
        from rlrun.tracking.mlflow import MlflowTracker

        mlflow = MlflowTracker(
            uri=plan.tracking.uri,
            experiment=plan.tracking.experiment,
            run_name=label or os.path.basename(start.run_dir),
            config=plan.resolved_config,
            tags={
                "rlrun.config_hash": plan.config_hash,
                "rlrun.run_dir": start.run_dir,
                **{f"rlrun.version.{k}": v for k, v in versions().items()},
            },
            run_id=start.state.mlflow_run_id if start.state else None,
            parent_run_id=parent_run_id,
        )
        trackers.append(mlflow)
        run_id = mlflow.run_id
    return Trackers(trackers), run_id


def _write_traceback(run_dir: str) -> None:
    with contextlib.suppress(OSError), open(os.path.join(run_dir, "error.log"), "w", encoding="utf-8") as f:
        f.write(traceback.format_exc())


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM raises Terminated in the main thread while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(signum: int, frame: Any) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
