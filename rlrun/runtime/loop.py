"""The training loop. There is one; `async_mode` only decides how far generation may run ahead, and at
max_staleness 0 it waits for every publish: synchronous training.

One pass is one step: draw prompts, generate and reward, log-probs (and a critic's values), advantages, optimizer steps
(the critic's first), save, publish the new weights as policy_version == step, evaluate, record. Supervised learning has
the rows of the data in place of generated samples, and nobody to publish to. The parts it drives (trainer, agent) are
protocols, so the same loop runs in unit tests without Ray or engines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlrun.agents.base import Agent
from rlrun.backends.base import TrainMetrics
from rlrun.data.prompts import PromptSource
from rlrun.data.selection import Hooks
from rlrun.data.types import Group, Prompt, Sample, TokenBatch, TrainBatch, ValueBatch
from rlrun.errors import RunFailed
from rlrun.plan.types import RunPlan
from rlrun.runtime import critic, saving, sft
from rlrun.runtime.checkpoint import CheckpointStore, RunState
from rlrun.runtime.collect import collect
from rlrun.runtime.gauge import Gauge
from rlrun.runtime.learn import credit, groups_of, logprobs, update, zero_variance
from rlrun.runtime.progress import Progress
from rlrun.runtime.turns import Turns
from rlrun.tracking.base import Trackers


class Trainer(Protocol):
    """All trainer ranks together; `rlrun.runtime.trainer_group` over Ray, a fake in unit tests."""

    def logprobs(self, batches: Sequence[TokenBatch], model: str = "policy") -> list[list[np.ndarray]]: ...
    def train_step(self, batches: Sequence[TrainBatch]) -> TrainMetrics: ...
    def values(self, batches: Sequence[TokenBatch]) -> list[list[np.ndarray]]: ...
    def value_step(self, batches: Sequence[ValueBatch]) -> TrainMetrics: ...
    def publish(self, version: int) -> dict[str, float]: ...
    def save(self, directory: str) -> None: ...
    def begin_save(self, directory: str) -> None: ...
    def save_done(self) -> bool: ...
    def finish_save(self) -> float: ...
    def export_hf(self, directory: str) -> None: ...
    def digest(self) -> list[dict[str, str]]: ...
    def memory(self) -> list[dict[str, float]]: ...


Guard = Callable[[Coroutine[Any, Any, Any], str, float], Coroutine[Any, Any, Any]]


@dataclass
class Run:
    """A run in progress: the plan, the live parts, and how far it is."""

    plan: RunPlan
    trainer: Trainer
    agent: Agent | None  # None when nothing is generated
    eval_agent: Agent | None
    source: PromptSource
    eval_prompts: Sequence[Prompt]
    tracker: Trackers
    store: CheckpointStore
    progress: Progress
    guard: Guard
    runner: asyncio.Runner  # one event loop for the whole run: HTTP connections outlive a step
    turns: Turns
    gauge: Gauge
    canary: Callable[[int], float] | None = None
    mlflow_run_id: str | None = None
    hooks: Hooks = field(default_factory=Hooks)
    buffer: list[Group] = field(default_factory=list)  # kept, and not needed yet
    step: int = 0
    at: int = 0  # the step that is being done
    optimizer_steps: int = 0
    learned: bool = False
    last_checkpoint: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        return min(self.plan.num_steps, self.plan.stop_after or self.plan.num_steps)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.progress.phase(self.at, name)
        began = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
        self.gauge.read(name)

    def state(self) -> RunState:
        return RunState(
            step=self.step,
            policy_version=self.step,
            optimizer_steps=self.optimizer_steps,
            source=self.source.state_dict(),
            config_hash=self.plan.config_hash,
            mlflow_run_id=self.mlflow_run_id,
        )


def train(run: Run) -> None:
    """Runs until the last step of the plan, or `stop_after`. Raises RunFailed; state on disk is then the last save."""
    try:
        _train(run)
    except RunFailed as error:
        saving.after_failure(run, error)
        raise


def _train(run: Run) -> None:
    run.at = run.step
    if run.plan.sync is not None:
        publish(run, run.step)
    if run.step == 0 and run.plan.eval is not None and run.plan.eval.before_train:
        run.tracker.log(0, evaluate(run))
    while run.step < run.last_step:
        began = time.monotonic()
        run.seconds.clear()
        run.turns.seconds = 0.0
        run.gauge.found.clear()
        step = run.at = run.step + 1
        metrics = sft.step(run) if run.plan.algo.supervised else rollout_step(run, step)
        run.step = step
        # Before the push, while the GPUs are still the trainer's: a run that goes on from here pushes first.
        metrics |= saving.after_step(run)
        if run.plan.sync is not None:
            metrics |= publish(run, step)
        if _evaluation_due(run):
            with run.phase("eval"):
                metrics |= evaluate(run)
        if run.turns.taken:
            run.seconds["offload"] = run.turns.seconds
        metrics |= {f"perf/{name}_s": s for name, s in run.seconds.items()}
        metrics |= run.gauge.found
        metrics["perf/step_s"] = time.monotonic() - began
        run.tracker.log(step, metrics)
        run.progress.step(step, run.last_step, metrics)
    if not run.learned:
        if run.plan.algo.supervised:
            raise RunFailed(
                "training", "no step had a gradient: every response is certain already", "give it other rows"
            )
        raise RunFailed(
            "training",
            "no step had a gradient: in every prompt group all rewards were equal",
            "check the reward function on a few samples, or raise algo.group_size or rollout.temperature",
        )


def rollout_step(run: Run, step: int) -> dict[str, float]:
    """Generates, and learns from what was rewarded."""
    with run.phase("generate"):
        groups, collected = collect(run, step)
    samples = [sample for group in groups for sample in group.samples]
    run.turns.train()
    metrics = learn(run, groups)
    tokens = collected["rollout/response_tokens_generated"]
    metrics["perf/response_tokens_per_s"] = tokens / max(run.seconds["generate"], 1e-9)
    return metrics | collected | rollout_metrics(samples, version=step - 1)


def _evaluation_due(run: Run) -> bool:
    """Every `interval` steps, and at the end."""
    plan = run.plan.eval
    return plan is not None and (run.step % plan.interval == 0 or run.step == run.last_step)


def learn(run: Run, groups: list[Group]) -> dict[str, float]:
    """From rewarded samples to new weights: what each token was worth, then the critic's update, then the policy's."""
    plan = run.plan
    samples = [sample for group in groups for sample in group.samples]
    with run.phase("logprobs"):
        scores = logprobs(run, samples)
    if plan.critic is not None:
        with run.phase("values"):
            scores = replace(scores, values=critic.values(run, samples))
    given = credit(plan.algo, samples, groups_of(groups), scores)
    metrics = {"rollout/zero_variance_groups": zero_variance(groups)}
    if scores.values is not None and given.returns is not None:
        with run.phase("critic"):
            metrics |= critic.update(run, groups, scores.values, given.returns)
    if critic.trains_policy(run):
        with run.phase("train"):
            metrics |= update(run, groups, scores, given)
    return metrics


def rollout_metrics(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """What the step's samples look like."""
    rewards = np.array([s.reward for s in samples])
    lengths = np.array([s.response_length for s in samples])
    return {
        "rollout/reward_mean": float(rewards.mean()),
        "rollout/reward_std": float(rewards.std()),
        "rollout/reward_max": float(rewards.max()),
        "rollout/response_tokens_mean": float(lengths.mean()),
        "rollout/response_tokens_max": float(lengths.max()),
        "rollout/truncated": float(np.mean([s.finish_reason == "length" for s in samples])),
        "rollout/aborted": float(np.mean([s.finish_reason == "abort" for s in samples])),
        "rollout/samples": float(len(samples)),
        "rollout/removed": float(np.mean([s.removed for s in samples])),
        "rollout/staleness_max": float(max(version - s.policy_version for s in samples)),
    }


def publish(run: Run, version: int) -> dict[str, float]:
    """The trainer's weights to every engine, as `version`; optionally a canary text scored by both sides."""
    run.turns.make_room()
    with run.phase("sync"):
        sent = run.trainer.publish(version)
    metrics = {"sync/bytes": float(sent["bytes"]), "train/policy_version": float(version)}
    if "full_updates" in sent:
        metrics["sync/full_updates"] = sent["full_updates"]
    if run.canary is not None:  # needs the trainer's weights and a serving engine
        run.turns.serve()
        with run.phase("sync"):
            metrics["sync/canary_abs_diff_max"] = run.canary(version)
        run.turns.leave()
    else:
        run.turns.leave()
        run.turns.serve()
    return metrics


def evaluate(run: Run) -> dict[str, float]:
    assert run.eval_agent is not None
    work = run.eval_agent.collect(run.eval_prompts, step=run.step)
    groups = run.runner.run(run.guard(work, f"evaluation after step {run.step}", run.plan.timeouts.generate_s))
    samples = [sample for group in groups for sample in group.samples]
    values = {
        "eval/reward_mean": float(np.mean([s.reward for s in samples])),
        "eval/response_tokens_mean": float(np.mean([s.response_length for s in samples])),
    }
    run.progress.note(f"eval after step {run.step}: reward {values['eval/reward_mean']:.3f} on {len(groups)} prompts")
    return values
