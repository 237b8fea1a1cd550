"""The live parts of a run, put together: HTTP client, agents, prompt source, canary. Without engines there is only the
source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from rlrun.agents.single_turn import MAX_REWARD_THREADS, MAX_WAITING_THREADS, SingleTurn
from rlrun.backends.sglang.client import SglangClient
from rlrun.data.prompts import PromptSource
from rlrun.data.types import TokenBatch
from rlrun.plan.types import RunPlan
from rlrun.runtime.checkpoint import CheckpointStore
from rlrun.runtime.cluster import Cluster
from rlrun.runtime.gauge import Gauge
from rlrun.runtime.inputs import Inputs
from rlrun.runtime.loop import Run
from rlrun.runtime.progress import Progress
from rlrun.runtime.turns import Turns
from rlrun.tracking.base import Trackers
from rlrun.weight_sync.canary import check_canary

CANARY_TOKENS = 16


def assemble(
    plan: RunPlan,
    cluster: Cluster,
    inputs: Inputs,
    trackers: Trackers,
    store: CheckpointStore,
    progress: Progress,
    runner: asyncio.Runner,
    client: SglangClient | None,
    mlflow_run_id: str | None,
) -> Run:
    sync, canary = plan.sync, None
    if client is not None and sync is not None and sync.verify == "canary":
        canary = _canary(plan, cluster, client, inputs, runner)
    return Run(
        plan=plan,
        trainer=cluster.trainer,
        agent=_agent(plan, client, inputs, "train") if client is not None else None,
        eval_agent=_agent(plan, client, inputs, "eval") if client is not None and plan.eval is not None else None,
        source=PromptSource(inputs.train, plan.data.shuffle, plan.seed),
        eval_prompts=inputs.eval,
        tracker=trackers,
        store=store,
        progress=progress,
        guard=cluster.supervisor.guard,
        runner=runner,
        turns=Turns(plan, cluster.trainer, cluster.fleet if plan.engines else None),
        gauge=Gauge(cluster.trainer),
        canary=canary,
        mlflow_run_id=mlflow_run_id,
        hooks=inputs.hooks,
    )


def _agent(plan: RunPlan, client: SglangClient, inputs: Inputs, stream: str) -> SingleTurn:
    assert plan.reward is not None, "samples without a reward"
    assert inputs.reward is not None
    evaluating = plan.eval if stream == "eval" else None
    return SingleTurn(
        client,
        inputs.reward,
        group_size=evaluating.samples_per_prompt if evaluating else plan.batch.group_size,
        temperature=evaluating.temperature if evaluating else plan.rollout.temperature,
        max_response_tokens=plan.rollout.max_response_tokens,
        stop=plan.rollout.stop,
        seed=plan.seed if plan.rollout.seeded else None,
        stream=stream,
        max_concurrent_groups=plan.rollout.max_concurrent_groups,
        reward_timeout_s=plan.reward.timeout_s,
        top_p=evaluating.top_p if evaluating else 1.0,
        top_k=evaluating.top_k if evaluating else -1,
        reward_threads=MAX_WAITING_THREADS if plan.deployment.models else MAX_REWARD_THREADS,
    )


def _canary(
    plan: RunPlan, cluster: Cluster, client: SglangClient, inputs: Inputs, runner: asyncio.Runner
) -> Callable[[int], float]:
    """Scores one fixed text (the first training prompt) with the trainer and with every engine after each sync."""
    tokens = np.array(inputs.train[0].token_ids[:CANARY_TOKENS], np.int64)

    async def scores() -> list[list[float]]:
        return list(await asyncio.gather(*(client.score(tokens.tolist(), e.index) for e in cluster.engines)))

    def check(version: int) -> float:
        # Every data-parallel rank takes part in the forward pass; the first one's answer is compared.
        batches: list[Any] = [TokenBatch([tokens], [[0]]) for _ in range(plan.train.dp)]
        expected = cluster.trainer.logprobs(batches)[0][0][1:]
        work = cluster.supervisor.guard(scores(), "the canary", plan.timeouts.sync_s)
        return check_canary(expected.tolist(), runner.run(work), plan.model.dtype, version)["max_abs_diff"]

    return check
