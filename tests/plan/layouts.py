"""Memory layouts for tests: a plain one, and changes to it."""

from __future__ import annotations

import functools
from dataclasses import replace

from rlrun.plan.build import load_plan
from rlrun.plan.layout import Layout
from rlrun.plan.types import ModelSpec


@functools.cache
def spec(model: str) -> ModelSpec:
    return load_plan(
        ["+experiment=qwen3_grpo", "placement=cpu_1", "rollout.max_response_tokens=1024", f"model={model}"]
    ).model.spec


def layout(model: str = "qwen3_4b", **changes: object) -> Layout:
    plain = Layout(
        spec=spec(model),
        gpu="h100_80gb",
        weight_bytes=2,
        colocated=True,
        tp=2,
        pp=1,
        cp=1,
        dp=4,
        ep=1,
        max_tokens=16384,
        micro_batch_size=None,
        recompute=True,
        sequence_parallel=False,
        distributed_optimizer=True,
        reference=False,
        engine_tp=1,
        mem_fraction=0.5,
        max_total_tokens=None,
        sample_tokens=2560,
        bucket_bytes=512 * 2**20,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]
