"""Which groups are learned from, and how many are generated for them."""

from __future__ import annotations

from rlrun.config.schema import RunConfig
from rlrun.plan.batch import drops_groups
from rlrun.plan.parts.sampling import OverlongPlan, SamplingPlan


def sampling_plan(config: RunConfig) -> SamplingPlan:
    d, r = config.dynamic_sampling, config.rollout
    drops = drops_groups(config)
    fixed = config.algo.groups_per_step is not None  # else everything that is kept is learned from: no surplus
    buffers = drops and fixed and d.surplus == "buffer"
    penalize = r.overlong == "penalize"
    return SamplingPlan(
        filter=d.filter,
        sample_filter=d.sample_filter,
        drops=drops,
        over_sampling=float(d.over_sampling) if drops else 1.0,
        max_refills=d.max_refills if drops else 0,
        surplus_staleness=max(1, config.async_mode.max_staleness) if buffers else 0,
        overlong=OverlongPlan(
            handling=r.overlong,
            max_tokens=r.max_response_tokens,
            buffer_tokens=(r.overlong_buffer_tokens or 0) if penalize else 0,
            penalty=float(r.overlong_penalty) if penalize else 0.0,
        ),
    )
