"""A trainer of two tensor-parallel ranks and the engines beside it: equal weights, and memory phase by phase."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import GIB, Part, say
from _engines import apart, checksums, differing, load, overwrite, post, scores, text
from _model import words
from _ranks import batches, samples
from _runs import MEMORY, GpuMemory

from rlrun.backends.base import EngineAddress, GenerateRequest
from rlrun.data.types import TokenBatch
from rlrun.plan.build import load_plan
from rlrun.plan.types import RunPlan

STEPS = 3


def colocated_tp(part: Part) -> None:
    for gpus, name in ((1, "two engines"), (2, "one engine of tp 2")):
        own = ["placement.gpus_per_node=2", "placement.trainer.gpus=2", "placement.trainer.tp=2"]
        own += ["placement.rollout.gpus=2", f"placement.rollout.gpus_per_engine={gpus}"]
        one_layout(part, load_plan(words(part, *own, graph=False)), name)


def one_layout(part: Part, plan: RunPlan, name: str) -> None:
    """Trains a little, publishes, and compares what the engines then have with what the trainer writes down."""
    from rlrun.runtime.cluster import Cluster

    folder, memory = part.folder(name.replace(" ", "_")), GpuMemory()
    began = time.monotonic()
    phases = Phases(part, plan, name, memory)
    try:
        with Cluster(plan, str(plan.model.path), str(folder), lambda line: say(f"  {line}")) as cluster:
            part.row(f"{name}: start-up", time.monotonic() - began, "s")
            trainer, engines = cluster.trainer, cluster.engines
            trainer.connect_engines(engines, str(folder))
            chosen = samples([plan.rollout.max_prompt_tokens + plan.rollout.max_response_tokens] * 64)
            step = batches(plan, chosen)
            for _ in range(STEPS):
                phases("train", lambda: trainer.train_step(step))
            phases("sync", lambda: trainer.publish(1))
            phases("logprobs", lambda: trainer.logprobs(step))
            phases("generate", lambda: asyncio.run(generate(cluster, plan)))
            export = folder / "export"
            phases("save", lambda: trainer.export_hf(str(export)))
            tokens = TokenBatch(tokens=[_array(text(plan))], micro_batches=[[0]])
            own = [float(x) for x in trainer.logprobs([tokens])[0][0][1:]]
            for engine in engines:
                what = f"{name}, engine {engine.index}"
                mean, largest = apart(scores(engine, text(plan)), own)
                part.row(f"{what}: mean |dlogp| to the trainer", mean, "nats")
                part.row(f"{what}: largest |dlogp| to the trainer", largest, "nats")
            same_weights(part, plan, name, engines, export)
        phases.report()
    finally:
        memory.close()
        for log in (folder / "logs").glob("*.log"):
            part.keep(log, f"{folder.name}.{log.name}")


def _array(tokens: list[int]) -> Any:
    import numpy as np

    return np.array(tokens, np.int64)


async def generate(cluster: Any, plan: RunPlan) -> None:
    """The samples of one rollout."""
    from rlrun.backends.sglang.client import SglangClient

    client = SglangClient(cluster.engines, cluster.router_url, plan.rollout)
    seeds = (None,) * plan.batch.group_size
    try:
        prompt = (1, 3, 4, 1)
        request = GenerateRequest(prompt, seeds, 1.0, plan.rollout.max_response_tokens)
        await asyncio.gather(*(client.generate(request) for _ in range(plan.batch.prompts_per_rollout)))
    finally:
        await client.close()


def same_weights(part: Part, plan: RunPlan, name: str, engines: list[EngineAddress], export: Path) -> None:
    """Are the weights that the engines were sent those that the trainer writes to files? Each engine loads the files,
    after random numbers were put in place of all its weights, and every tensor of every rank has to have the hash that
    it had before. Where SGLang cannot hash (CPU), a text's log-probs have to stay what they were, to the bit."""
    if plan.device != "cuda":
        for engine in engines:
            before = scores(engine, text(plan))
            load(engine, export, 2)
            change = apart(scores(engine, text(plan)), before)[1]
            part.row(f"{name}, engine {engine.index}: |dlogp| after loading the trainer's files", change, "nats")
        return
    synced = [checksums(engine) for engine in engines]
    if len(engines) > 1:
        part.row(f"{name}: weights in which engines differ", sum(differing(synced[0], other) for other in synced[1:]))
    for engine, before in zip(engines, synced, strict=True):
        what = f"{name}, engine {engine.index}"
        overwrite(engine)
        gone = differing(checksums(engine), before)
        load(engine, export, 2)
        part.row(f"{what}: weights overwritten, of all", gone, "", sum(map(len, before)), "all")
        part.row(f"{what}: weights that differ from the trainer's files", differing(checksums(engine), before))
        post(engine, "/flush_cache", {})


class Phases:
    """Calls of a phase: their seconds, and the GPU memory at their worst moment, beside the plan's."""

    def __init__(self, part: Part, plan: RunPlan, name: str, memory: GpuMemory):
        self.part, self.plan, self.name, self.memory = part, plan, name, memory
        self.spans: dict[str, list[tuple[float, float]]] = {}

    def __call__(self, phase: str, work: Callable[[], Any]) -> None:
        began = time.time()
        work()
        self.spans.setdefault(phase, []).append((began, time.time()))

    def report(self) -> None:
        found = self.plan.memory
        planned = {p.phase: p.total_bytes / GIB for p in found.phases} if found is not None else {}
        for phase, spans in self.spans.items():
            best = min(last - first for first, last in spans)
            self.part.row(f"{self.name}: {phase}, fastest", best, "s")
            estimate = next((planned[n] for n in MEMORY[phase] if n in planned), None)
            if estimate is not None:
                peak = self.memory.peak(spans)
                self.part.row(f"{self.name}: GPU memory, {phase}", peak, "GiB", estimate, "plan")
