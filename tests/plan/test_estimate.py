"""Times of a step: closed forms where everything else is switched off, and what has to hold for every run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.load import load
from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.context import Context
from rlrun.plan.decide.time import work_of
from rlrun.plan.estimate import efficiency
from rlrun.plan.estimate.flops import forward
from rlrun.plan.estimate.generate import concurrency, decode_step, generate, weights_read
from rlrun.plan.estimate.step import estimate_time, weight_sync_s
from rlrun.plan.estimate.train import exchange_s, forward_flops, micro_batches, padded_tokens, train
from rlrun.plan.estimate.work import Work
from rlrun.plan.kv import kv_bytes_per_token


def work(*words: str) -> Work:
    loaded = load(words)
    found = work_of(Context(loaded.config, loaded.origins))
    assert found is not None
    return found


SPLIT = ["+experiment=qwen3_grpo", "placement=split_8gpu", "rollout.sglang.cuda_graph=true"]
DENSE = work(*SPLIT)
SPARSE = work("+experiment=qwen3_5_35b_a3b_grpo_async", "async_mode=sync")
FULLY = work("+experiment=qwen3_5_35b_a3b_grpo_async")
WORKS = st.sampled_from([DENSE, SPARSE, FULLY])


def ahead(w: Work, mode: str, **changes: object) -> Work:
    depth = {"sync": 0, "one_step": 1, "fully_async": 2}[mode]
    return replace(w, mode=mode, max_staleness=depth, pause_mode="in_place" if depth == 2 else None, **changes)


def test_a_lone_token_takes_the_time_to_read_weights_and_cache():
    """Qwen3-4B on one GPU: 8.04 GB at 0.5 x 3.35 TB/s are 4.8 ms."""
    alone = replace(DENSE, layout=replace(DENSE.layout, engine_tp=1), rollout_gpus=1)
    seconds, bound = decode_step(alone, 1)
    cache = alone.mean_context * kv_bytes_per_token(alone.layout.spec, 1)
    read = (2 * 4_022_468_096 + cache) / (0.5 * 3.35e12)
    assert bound == "memory bandwidth"
    assert seconds == pytest.approx(read + efficiency.SCHEDULER_S)


def test_without_a_cuda_graph_the_cpu_sets_the_pace():
    seconds, bound = decode_step(replace(DENSE, cuda_graph=False), 1)
    assert (seconds, bound) == (pytest.approx(36 * 0.5e-3 + 1e-3), "kernel launches")


def test_experts_are_read_when_a_token_needs_them():
    """One token of Qwen3.5-35B-A3B reads 8 of 256 experts, a thousand nearly all of them."""
    one, many = weights_read(SPARSE, 1), weights_read(SPARSE, 1000)
    experts = 2 * 40 * 256 * 3 * 2048 * 512 / SPARSE.layout.engine_tp
    assert many - one == pytest.approx(experts * (1 - 8 / 256), rel=1e-3)


def test_samples_that_fit_run_at_once_and_the_longest_decides():
    """64 samples on two engines, all running: as many decode steps as the longest has tokens."""
    w = replace(DENSE, num_samples=64, generated_samples=64, in_flight_samples=10_000)
    g = generate(w)
    assert g.running == 32
    assert g.tail_s == pytest.approx(1024 * g.decode_step_s)
    equal = generate(replace(w, response_tokens=2048.0))
    assert equal.tail_s == 0


@pytest.mark.parametrize(
    ("changes", "running"),
    [
        ({"max_running_requests": 7}, 7),
        ({"in_flight_samples": 24}, 12),
        ({"generated_samples": 10, "max_running_requests": 999}, 5),
        ({"layout": replace(DENSE.layout, max_total_tokens=12_800)}, 10),
    ],
)
def test_what_bounds_the_samples_that_run_together(changes, running):
    """Requests, groups in flight, the rollout itself, the KV cache of 12,800 tokens and samples of 1,280."""
    assert concurrency(replace(DENSE, **changes)) == running


def test_training_is_six_times_the_parameters_and_what_is_recomputed():
    """Qwen3-4B: 2N a token forward, thrice with the backward pass, and layers and logits once more."""
    w = replace(DENSE, layout=replace(DENSE.layout, tp=1, dp=1), prompt_tokens=0.0, forward_passes=1)
    f = forward(w.layout.spec)
    layers, head = forward_flops(w)
    pairs = (w.sample_tokens_squared + w.sample_tokens) / 2
    assert layers == pytest.approx(w.tokens * f.layers + w.num_samples * pairs * f.pair)
    assert head == pytest.approx(w.tokens * f.head)
    t = train(w)
    rate = 989e12 * efficiency.TRAIN_DENSE
    assert t.logprobs_s == pytest.approx((layers + head) / rate)
    optimizer = 2 * 12 * 4_022_468_096 / 3.35e12
    assert t.train_s == pytest.approx((4 * layers + 4 * head) / rate + optimizer)
    kept = train(replace(w, layout=replace(w.layout, recompute=False)))
    assert t.train_s - kept.train_s == pytest.approx(layers / rate)


def test_a_reference_model_gives_log_probs_too():
    both = train(replace(DENSE, layout=replace(DENSE.layout, reference=True)))
    assert both.logprobs_s == pytest.approx(2 * train(DENSE).logprobs_s)


def test_pipeline_stages_wait_for_each_other():
    """(pp - 1) / micro-batches: 512 samples of 1,280 tokens on one replica are 40 micro-batches of 16,384."""
    piped = replace(DENSE, layout=replace(DENSE.layout, tp=1, pp=4, dp=1))
    assert micro_batches(piped) == 40
    assert train(piped).pipeline_bubble == pytest.approx(1 - 1 / (1 + 3 / 40))
    assert train(DENSE).pipeline_bubble == 0


def test_context_parallel_ranks_share_a_micro_batch():
    """The cap is what one GPU has: as many samples of half the replicas, in micro-batches twice as long."""
    one = replace(DENSE, layout=replace(DENSE.layout, tp=1, dp=4))
    two = replace(DENSE, layout=replace(DENSE.layout, tp=1, dp=2, cp=2))
    assert micro_batches(one) == micro_batches(two) == 10


def test_context_parallel_ranks_send_their_keys_and_values():
    """8 heads of 128 each, of every token of a rank, to all of the others, in each of 36 layers."""
    apart = replace(DENSE, layout=replace(DENSE.layout, tp=1, dp=1, cp=4))
    sent = DENSE.num_samples * DENSE.sample_tokens / 4 * 2 * 8 * 128 * 2
    assert exchange_s(apart, 1) == pytest.approx(36 * 3 * sent / (450e9 * 0.6))


def test_padded_rows_are_as_long_as_the_longest_of_their_micro_batch():
    """Responses from 0 to 2,048: the longer of two has 2/3 of that on average, a single one is itself."""
    pair = replace(DENSE.layout, max_tokens=None, micro_batch_size=2)
    assert padded_tokens(replace(DENSE, layout=pair)) == pytest.approx(256 + 2048 * 2 / 3)
    assert padded_tokens(replace(DENSE, layout=replace(pair, micro_batch_size=1))) == DENSE.sample_tokens


def test_all_reduces_and_all_to_alls_are_counted_on_their_link():
    """Two all-reduces a layer, each passing 2 (tp - 1) / tp of the hidden states; experts over two nodes."""
    hidden = DENSE.num_samples * DENSE.sample_tokens / 2 * 2560 * 2
    assert exchange_s(DENSE, 1) == pytest.approx(36 * 2 * 2 * (1 / 2) * hidden / (450e9 * 0.6))
    near = replace(SPARSE, layout=replace(SPARSE.layout, ep=8))
    far = exchange_s(SPARSE, 1) - exchange_s(near, 1)
    assert far > exchange_s(near, 1) - exchange_s(replace(SPARSE, layout=replace(SPARSE.layout, ep=4)), 1)


def test_weights_are_gathered_sent_and_loaded():
    """8.04 GB in 16 buckets: gathered (tp 2) and sent over NVLink at 0.4 x 450 GB/s, then read by tp 2."""
    size = 2 * 4_022_468_096
    expected = 2 * size / (0.4 * 450e9) + size / 2 / (0.5 * 3.35e12) + 15 * 0.05
    assert weight_sync_s(DENSE) == pytest.approx(expected)
    apart = replace(DENSE, gpus_per_node=4)
    assert weight_sync_s(apart) - weight_sync_s(DENSE) == pytest.approx(2 * size * (1 / 20e9 - 1 / 180e9))


def test_checkpoints_are_written_and_read_and_changes_compared():
    """At 2 GB/s each way, without buckets; a delta is compared on the GPU, by each engine and once more by the host."""
    size, link = 2 * 4_022_468_096, 0.4 * 450e9
    disk = replace(DENSE, transport="disk", layout=replace(DENSE.layout, bucket_bytes=0))
    assert weight_sync_s(disk) == pytest.approx(size / link + 2 * size / 2e9 + size / 2 / (0.5 * 3.35e12) + 0.05)
    delta = replace(DENSE, transport="delta")
    assert weight_sync_s(delta) == pytest.approx(size / link + size / (0.7 * DENSE.gpu.host) + 2 * size / 1e9 + 0.05)


def test_a_slower_network_is_used_where_it_is_written():
    slow = work("+experiment=qwen3_5_35b_a3b_grpo_async", "async_mode=sync", "placement.network_gb_per_s=12.5")
    assert slow == replace(SPARSE, network_gb_per_s=12.5)
    size = 2 * SPARSE.layout.spec.num_parameters
    assert weight_sync_s(slow) - weight_sync_s(SPARSE) == pytest.approx(2 * size / 0.4 * (1 / 12.5e9 - 1 / 50e9))
    assert exchange_s(slow, 1) > exchange_s(SPARSE, 1)


def test_modes_overlap_what_they_say():
    one, sync = estimate_time(ahead(DENSE, "one_step")), estimate_time(DENSE)
    generation, logprobs, optimize, publish = (phase.seconds for phase in sync.phases)
    assert sync.step_s == pytest.approx(generation + logprobs + optimize + publish)
    assert one.step_s == pytest.approx(max(generation, logprobs + optimize) + publish)
    every_other = estimate_time(ahead(DENSE, "fully_async", weight_sync_interval=2))
    every = estimate_time(ahead(DENSE, "fully_async"))
    assert every.step_s - every_other.step_s == pytest.approx(publish / 2)


def test_interrupted_samples_cost_what_their_pause_mode_says():
    keep, again, anew = (
        generate(replace(ahead(DENSE, "fully_async"), pause_mode=mode, partial_rollout=partial)).interrupted_s
        for mode, partial in (("in_place", False), ("abort", True), ("abort", False))
    )
    assert keep == 0 < again < anew
    retract = generate(replace(ahead(DENSE, "fully_async"), pause_mode="retract")).interrupted_s
    assert retract == again
    half = generate(replace(ahead(DENSE, "fully_async", weight_sync_interval=2), pause_mode="retract")).interrupted_s
    assert half == pytest.approx(retract / 2)


def test_staleness_follows_littles_law_up_to_its_bound():
    """Engines that are by far the slower side: as many steps end as batches are in flight."""
    slow = ahead(DENSE, "fully_async", in_flight_samples=DENSE.num_samples // 2, max_running_requests=1)
    assert estimate_time(replace(slow, max_staleness=8)).staleness == pytest.approx(0.5, abs=0.02)
    deep = replace(slow, in_flight_samples=3 * DENSE.num_samples, max_staleness=2)
    assert estimate_time(deep).staleness == 2
    assert estimate_time(DENSE).staleness == 0
    assert estimate_time(ahead(DENSE, "one_step")).staleness == 1


def test_a_slow_trainer_lets_the_queue_fill_to_the_bound():
    fast = ahead(DENSE, "fully_async", response_tokens=8.0, longest_response=8, prompt_tokens=4096.0)
    phases = {phase.phase: phase.seconds for phase in estimate_time(fast).phases}
    assert phases["train"] + phases["logprob"] > phases["generate"]
    assert estimate_time(fast).staleness == fast.max_staleness


@settings(max_examples=60, deadline=None)
@given(w=WORKS, factor=st.floats(1.0, 8.0))
def test_more_tokens_take_longer(w, factor):
    before = estimate_time(w)
    longer = replace(w, response_tokens=w.response_tokens * factor, longest_response=int(w.longest_response * factor))
    for more in (
        longer,
        replace(w, prompt_tokens=w.prompt_tokens * factor),
        replace(w, num_samples=int(w.num_samples * factor)),
        replace(w, longest_response=int(w.longest_response * factor)),
    ):
        assert estimate_time(more).step_s >= before.step_s * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    w=WORKS,
    running=st.integers(1, 512),
    samples=st.integers(32, 4096),
    share=st.floats(0.05, 1.0),
)
def test_running_ahead_never_takes_longer_and_shares_are_shares(w, running, samples, share):
    base = replace(
        w, max_running_requests=running, num_samples=samples, in_flight_samples=samples,
        response_tokens=max(1.0, share * w.longest_response),
    )  # fmt: skip
    sync, one, fully = (estimate_time(ahead(base, mode)) for mode in ("sync", "one_step", "fully_async"))
    assert fully.step_s <= one.step_s * (1 + 1e-9) <= sync.step_s * (1 + 2e-9)
    for time in (sync, one, fully):
        assert 0 <= time.bubble < 1
    assert 0 <= fully.staleness <= 2
    assert one.bubble <= sync.bubble + 1e-9


@settings(max_examples=30, deadline=None)
@given(running=st.integers(1, 256))
def test_more_samples_at_once_make_a_rollout_shorter(running):
    fewer, more = (replace(SPARSE, max_running_requests=n) for n in (running, running + 1))
    assert generate(more).seconds <= generate(fewer).seconds * (1 + 1e-9)


@pytest.mark.parametrize("name", ["a100_80gb", "h800_80gb", "h200_141gb", "b200_180gb"])
def test_every_gpu_has_an_estimate_and_a_faster_one_is_faster(name):
    other = estimate_time(replace(SPARSE, layout=replace(SPARSE.layout, gpu=name)))
    h100 = estimate_time(SPARSE)
    assert (other.step_s < h100.step_s) == (name in ("h200_141gb", "b200_180gb"))


def test_the_plan_has_the_estimate_on_cuda_and_none_on_cpu():
    plan = load_plan(SPLIT)
    assert plan.time == estimate_time(DENSE)
    assert plan.time.gpu_hours == pytest.approx(8 * plan.time.run_hours)
    assert plan.time.run_hours == pytest.approx(200 * plan.time.step_s / 3600)
    assert load_plan(["+experiment=quickstart"]).time is None


def test_an_expected_length_takes_the_place_of_half_the_limit():
    short = load_plan([*SPLIT, "rollout.expected_response_tokens=300"])
    assert (short.time.response_tokens, load_plan(SPLIT).time.response_tokens) == (300, 1024)
    assert short.time.step_s < load_plan(SPLIT).time.step_s
    assert short.config_hash == load_plan(SPLIT).config_hash


def test_groups_in_flight_have_one_bound_in_the_plan():
    fully = [*SPLIT, "async_mode=fully_async"]
    assert load_plan(SPLIT).rollout.max_concurrent_groups == 256
    assert load_plan(fully).rollout.max_concurrent_groups == 64, "a rollout's prompts when nothing is said"
    assert load_plan([*fully, "async_mode.max_in_flight_groups=24"]).rollout.max_concurrent_groups == 24


def test_every_optimizer_step_has_its_deadline_for_itself():
    """A third of the training's time is too short for it as one optimizer step, and enough for each of four."""
    optimize = next(phase.seconds for phase in load_plan(SPLIT).time.phases if phase.phase == "train")
    words = [*SPLIT, f"timeouts.train_s={optimize / 3:.2f}"]
    with pytest.raises(RlrunError) as e:
        load_plan(words)
    assert [p.code for p in e.value.problems] == ["timeout-too-short"]
    assert "an optimizer step takes about" in e.value.problems[0].summary
    load_plan([*words, "algo.groups_per_step=16"])
