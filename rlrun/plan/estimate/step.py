"""A step of each mode, from the seconds of its phases, and what waits for what.

    sync          generate + log-probs + critic + train + weight sync + offload
    one_step      max(generate, log-probs + critic + train) + weight sync
    fully_async   max(generate without tail, log-probs + critic + train) + weight sync / interval

Bubble: the share of all GPU-seconds of a step in which a GPU waits, for the other side, for the longest sample of a
rollout or for another pipeline stage.

Staleness by Little's law: with b groups a step, N of them in flight and half a batch waiting until it is whole,
training on a group begins N / b + 1/2 steps after its generation. Between these two moments the trainer ends N / b
+ T steps, when it is busy for a share T of each, and the engines' weights were (interval - 1) / 2 steps old at
first. A trainer that is slower than the engines lets the queue fill up to what max_staleness admits. Never above
max_staleness, which is enforced by not admitting groups.
"""

from __future__ import annotations

import functools

from rlrun.plan.estimate import efficiency
from rlrun.plan.estimate.generate import Generate, generate
from rlrun.plan.estimate.train import Train, train
from rlrun.plan.estimate.work import Work
from rlrun.plan.memory import state
from rlrun.plan.parameters import count_parameters
from rlrun.plan.parts.time import PhaseTime, TimePlan


def weight_sync_s(w: Work) -> float:
    """Every rank's parts gathered to whole tensors and, when distributed, sent to the engines; bucket by bucket. By
    disk they are written and then read, by all engines at once. A delta is small, but what it changes is compared with
    the copies: on the trainer's GPU, to which the old weights are moved, by each engine, and at the end by the host."""
    m = w.layout
    total = count_parameters(m.spec) * m.weight_bytes
    one_node = w.gpus <= w.gpus_per_node
    gathered = total if w.trainer_gpus > m.dp else 0  # a rank that has the whole model gathers nothing
    sent = total if w.transport == "distributed" else 0
    link = w.gpu.link(one_node) * efficiency.WEIGHT_SYNC
    loaded = total / m.engine_tp / (w.gpu.hbm * efficiency.HBM)
    filed = 2 * total / efficiency.SHARED_DISK if w.transport == "disk" else 0.0
    if w.transport == "delta":
        compared = total / (w.gpu.host * efficiency.HOST_LINK) + 2 * total / efficiency.DELTA_CHECK
        return gathered / link + compared + efficiency.BUCKET_S
    requests = -(-total // m.bucket_bytes) if m.bucket_bytes else 1
    return (gathered + sent) / link + filed + loaded + requests * efficiency.BUCKET_S


def offload_s(w: Work) -> float:
    """A rank's weights and optimizer state to pinned host memory and back, once a step; gradients are made anew."""
    m = w.layout
    if not m.trainer_offload:
        return 0.0
    kept = max(sum(terms.values()) - terms["gradients"] for terms in state(m))
    return 2 * kept / (w.gpu.host * efficiency.HOST_LINK)


@functools.lru_cache(maxsize=256)
def estimate_time(w: Work) -> TimePlan:
    """The whole estimate. Pure, and remembered: rules and plan ask for the same one."""
    g, t, sync = generate(w), train(w), weight_sync_s(w)
    trainer, moved = t.logprobs_s + t.critic_s + t.train_s, offload_s(w)
    if w.mode == "sync":
        step = g.seconds + trainer + sync + moved
    else:
        step = max(g.seconds, trainer) + sync / w.weight_sync_interval
    phases = (
        PhaseTime("generate", g.seconds),
        PhaseTime("logprob", t.logprobs_s),
        *([PhaseTime("critic", t.critic_s)] if w.layout.critic else []),
        PhaseTime("train", t.train_s),
        PhaseTime("sync", sync),
        *([PhaseTime("offload", moved)] if w.layout.trainer_offload else []),
    )
    hours = step * w.num_steps / 3600
    return TimePlan(
        phases=phases,
        step_s=step,
        tokens_per_s=w.tokens / step,
        bubble=bubble(w, g, t, sync, step),
        staleness=expected_staleness(w, trainer / step, trainer_bound=trainer > g.seconds),
        run_hours=hours,
        gpu_hours=hours * w.gpus,
        prompt_tokens=w.prompt_tokens,
        response_tokens=w.response_tokens,
        running=g.running,
        decode_step_s=g.decode_step_s,
        decode_bound=g.bound,
        tail_s=g.tail_s,
        interrupted_s=g.interrupted_s,
        longest_request_s=g.decode_step_s * w.longest_response,
    )


def bubble(w: Work, g: Generate, t: Train, sync: float, step: float) -> float:
    engines = w.rollout_gpus * (g.seconds - g.tail_s)
    trainer = w.trainer_gpus * (t.logprobs_s + t.critic_s + t.train_s) * (1 - t.pipeline_bubble)
    busy = engines + trainer + w.gpus * sync / w.weight_sync_interval
    return max(0.0, 1 - busy / (w.gpus * step))


def expected_staleness(w: Work, trainer_share: float, trainer_bound: bool) -> float:
    """Mean of trainer version minus sample version; `trainer_share` of a step the trainer is busy."""
    if w.mode != "fully_async":
        return float(w.max_staleness)
    if trainer_bound:
        return float(w.max_staleness)
    ended = w.in_flight_samples / w.num_samples + trainer_share
    return min(float(w.max_staleness), ended + (w.weight_sync_interval - 1) / 2)
