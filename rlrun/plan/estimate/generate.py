"""Seconds of one rollout on the slowest engine.

Decoding reads every weight (of experts those that some token needs) and every running sample's cache for each token of
each sample, so a decode step takes the longer of bytes / bandwidth and operations / peak, and the latency of two
all-reduces a layer when tensor-parallel; but never less than the CPU takes to launch it.

    running at once   C = min(samples of the engine, max_running_requests, what its KV cache holds, its share of those
                      in flight)
    decode steps      samples x mean / C + (longest - mean)

The second term is the long tail: when nothing waits any more, the longest sample goes on while others have ended.
It is the form of list scheduling's bound, and comes to 0.9 to 1.2 times the steps of simulated schedules.
fully_async has none: a sample that ends is followed by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.estimate import efficiency
from rlrun.plan.estimate.flops import causal_pairs, forward
from rlrun.plan.estimate.work import Work
from rlrun.plan.kv import state_bytes_per_request
from rlrun.plan.parameters import share, stage_parameters


@dataclass(frozen=True)
class Generate:
    seconds: float
    tail_s: float  # of it in which an engine is not full
    decode_step_s: float
    running: int  # samples decoded together in an engine, at most
    bound: str  # what a decode step waits for
    interrupted_s: float = 0.0  # of it lost to weight syncs


def generate(w: Work) -> Generate:
    """A rollout of its own (sync, one_step), or as many samples of a stream that never ends (fully_async)."""
    samples = -(-w.generated_samples // w.num_engines)
    running = concurrency(w)
    full_steps = samples * w.response_tokens / running
    tail_steps = 0.0 if w.mode == "fully_async" else max(0.0, w.longest_response - w.response_tokens)
    mean_running = samples * w.response_tokens / (full_steps + tail_steps)
    step, bound = decode_step(w, mean_running)
    prefill = samples * prefill_s(w, w.prompt_tokens)
    lost = _interruption(w, running, step)
    ragged = efficiency.RAGGED if w.num_engines > 1 else 1.0
    seconds = (prefill + full_steps * step + lost) * ragged + tail_steps * step
    return Generate(seconds, tail_steps * step, step, running, bound, lost * ragged)


def concurrency(w: Work) -> int:
    """Samples decoded together in one engine, at most."""
    by_cache = int(w.kv.tokens / w.sample_tokens)
    waiting = w.in_flight_samples // w.num_engines
    if w.mode != "fully_async":
        waiting = min(waiting, -(-w.generated_samples // w.num_engines))
    return max(1, min(w.max_running_requests, by_cache, waiting))


def decode_step(w: Work, running: float) -> tuple[float, str]:
    """(seconds in which each of so many samples gets a token, what they wait for)."""
    m, gpu = w.layout, w.gpu
    context = w.mean_context
    cache = context * w.kv.bytes_per_token + 2 * state_bytes_per_request(m.spec, m.engine_tp)
    read = (weights_read(w, running) + running * cache) / (gpu.hbm * efficiency.HBM)
    compute = running * forward(m.spec).decode(context) / m.engine_tp / (gpu.flops * efficiency.DECODE_COMPUTE)
    exchange = 0.0
    if m.engine_tp > 1:
        link = gpu.link(m.engine_tp <= w.gpus_per_node) * efficiency.COLLECTIVE
        part = 2 * (m.engine_tp - 1) / m.engine_tp * running * m.spec.hidden_size * m.weight_bytes
        exchange = 2 * m.spec.num_layers * (efficiency.ALL_REDUCE_S + part / link)
    each = efficiency.LAUNCH_GRAPH_S if w.cuda_graph else efficiency.LAUNCH_EAGER_S
    launch = each * m.spec.num_layers
    busy = max(read, compute) + exchange
    if launch > busy:
        return launch + efficiency.SCHEDULER_S, "kernel launches"
    bound = "memory bandwidth" if read >= compute else "arithmetic"
    return busy + efficiency.SCHEDULER_S, bound


def weights_read(w: Work, running: float) -> float:
    """Bytes of weights that a decode step reads on one GPU: of an embedding that is not the output layer a few rows, of
    E experts those that at least one of the running samples is sent to."""
    spec, tp = w.layout.spec, w.layout.engine_tp
    [(plain, experts)] = stage_parameters(spec, tp, ep=tp)
    if not spec.tied_embeddings:
        plain -= share(spec.vocab_size, tp) * spec.hidden_size
    touched = 0.0
    if spec.moe is not None:
        touched = 1 - (1 - spec.moe.experts_per_token / spec.moe.num_experts) ** running
    return w.layout.weight_bytes * (plain + touched * experts)


def prefill_s(w: Work, tokens: float) -> float:
    """Seconds in which an engine reads a text of so many tokens; prompts are not shared between samples."""
    operations = forward(w.layout.spec).sequence(tokens, causal_pairs(tokens))
    return operations / (w.layout.engine_tp * w.gpu.flops * efficiency.PREFILL)


def _interruption(w: Work, running: int, step: float) -> float:
    """Seconds a step that weight syncs cost running samples: their contexts are read again; or, aborted and drawn anew,
    they lose half their tokens on average."""
    if w.mode != "fully_async" or w.pause_mode == "in_place":
        return 0.0
    if w.pause_mode == "abort" and not w.partial_rollout:
        once = w.response_tokens / 2 * step
    else:
        once = running * prefill_s(w, w.mean_context)
    return once / w.weight_sync_interval
