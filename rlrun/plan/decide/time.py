"""The configuration in the terms of `rlrun.plan.estimate`."""

from __future__ import annotations

from rlrun.plan import batch
from rlrun.plan.context import Context
from rlrun.plan.decide.rollout import in_flight_groups
from rlrun.plan.decide.train import old_logprobs
from rlrun.plan.estimate.step import estimate_time
from rlrun.plan.estimate.work import Work
from rlrun.plan.kv import kv_cache
from rlrun.plan.parts.time import TimePlan
from rlrun.plan.rules.memory import layout_of

TYPICAL = 0.5
"""Mean length of prompts and responses, as a share of their limits, when nothing better is known."""


def work_of(c: Context) -> Work | None:
    """None on cpu, whose speed nobody publishes, and for sizes that other rules refuse."""
    layout = layout_of(c)
    if layout is None or kv_cache(layout).samples < 1:
        return None
    p, r, algo, mode = c.config.placement, c.config.rollout, c.config.algo, c.config.async_mode
    if algo.groups_per_step is not None and algo.prompts_per_rollout < algo.groups_per_step:
        return None
    return Work(
        layout=layout,
        gpus_per_node=p.gpus_per_node,
        rollout_gpus=layout.rollout_gpus,
        num_samples=algo.prompts_per_rollout * algo.group_size,
        generated_samples=batch.first_draw(c.config) * algo.group_size,
        forward_passes=(old_logprobs(algo) == "trainer") + layout.reference,
        optimizer_steps=batch.steps_per_rollout(c.config),
        in_flight_samples=in_flight_groups(c.config) * algo.group_size,
        max_running_requests=r.sglang.max_running_requests,
        cuda_graph=r.sglang.cuda_graph,
        prompt_tokens=TYPICAL * r.max_prompt_tokens,
        response_tokens=float(r.expected_response_tokens or TYPICAL * r.max_response_tokens),
        longest_response=r.max_response_tokens,
        transport=c.config.weight_sync.transport,
        mode=mode.name,
        max_staleness=mode.max_staleness,
        pause_mode=mode.pause_mode,
        partial_rollout=mode.partial_rollout,
        weight_sync_interval=mode.weight_sync_interval,
        num_steps=c.config.num_steps,
        network_gb_per_s=p.network_gb_per_s,
    )


def time_plan(c: Context) -> TimePlan | None:
    """What a step takes; None on cpu."""
    work = work_of(c)
    return estimate_time(work) if work is not None else None
