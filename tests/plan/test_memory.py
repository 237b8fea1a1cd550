"""GPU memory against worked examples, published cache sizes, and what has to hold for every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.backends import megatron
from rlrun.plan.build import load_plan
from rlrun.plan.memory import (
    GIB,
    GPUS,
    LOGIT_ROWS,
    Layout,
    activations,
    engine_weights,
    estimate,
    host_bytes,
    kv_bytes_per_token,
    kv_cache,
    layer_bytes,
    logits,
    state,
    state_bytes_per_request,
    worst_phase,
)
from rlrun.plan.remedies import remedies, suggest
from rlrun.plan.types import ModelSpec


def spec(model: str) -> ModelSpec:
    words = ["+experiment=qwen3_grpo", "placement=cpu_1", "rollout.max_response_tokens=1024"]
    return load_plan([*words, f"model={model}"]).model.spec


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


@pytest.mark.parametrize(
    ("model", "sizes", "gib"),
    [
        ("qwen3_4b", {"tp": 2, "dp": 4}, (3.7, 7.5, 5.6)),
        ("qwen3_30b_a3b", {"tp": 4, "dp": 2, "ep": 8}, (7.5, 15.0, 42.7)),
        ("glm4_7_355b", {"tp": 8, "pp": 4, "cp": 2, "dp": 1, "ep": 16}, (11.2, 22.4, 63.9)),
        ("minimax_m2", {"tp": 4, "pp": 2, "dp": 4, "ep": 16}, (14.0, 28.1, 79.9)),
    ],
)
def test_state_is_that_of_the_worked_examples(model, sizes, gib):
    """Worst stage of layouts that were worked out by hand for these models, to 3 %."""
    worst = max(state(layout(model, **sizes)), key=lambda terms: sum(terms.values()))
    for name, expected in zip(("weights", "gradients", "optimizer"), gib, strict=True):
        assert worst[name] / GIB == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("model", "world"), [("glm4_7_355b", (8, 4, 2)), ("minimax_m2", (4, 2, 4))])
def test_no_layout_goes_below_18_bytes_a_parameter(model, world):
    tp, pp, dp = world
    worst = max(sum(t.values()) for t in state(layout(model, tp=tp, pp=pp, dp=dp, ep=tp * dp)))
    assert worst >= 18 * spec(model).num_parameters / (tp * pp * dp)


@pytest.mark.parametrize(
    ("model", "bytes_by_tp"),
    [
        ("qwen3_4b", (147456, 73728, 36864, 18432)),
        ("qwen3_30b_a3b", (98304, 49152, 24576, 24576)),
        ("qwen3_5_27b", (65536, 32768, 16384, 16384)),
        ("qwen3_5_35b_a3b", (20480, 10240, 10240, 10240)),
        ("glm4_5_air", (188416, 94208, 47104, 23552)),
        ("glm4_7_355b", (376832, 188416, 94208, 47104)),
        ("glm4_7_flash", (54144, 54144, 54144, 54144)),
        ("glm5", (100152, 100152, 100152, 100152)),
        ("minimax_m2", (253952, 126976, 63488, 31744)),
    ],
)
def test_a_token_takes_the_published_bytes_of_kv_cache(model, bytes_by_tp):
    assert tuple(kv_bytes_per_token(spec(model), tp) for tp in (1, 2, 4, 8)) == bytes_by_tp


def test_recurrent_layers_take_a_constant_state_a_request():
    assert state_bytes_per_request(spec("qwen3_5_27b"), 1) / 2**20 == pytest.approx(146.8, abs=0.1)
    assert state_bytes_per_request(spec("qwen3_5_35b_a3b"), 1) / 2**20 == pytest.approx(61.4, abs=0.1)
    assert state_bytes_per_request(spec("qwen3_4b"), 1) == 0


def test_the_kv_cache_is_what_the_weights_leave_of_the_share():
    """Qwen3-4B, two GPUs an engine, 0.75 of 80 GiB: 0.82 million tokens."""
    kv = kv_cache(layout(engine_tp=2, mem_fraction=0.75 * 80 / GPUS["h100_80gb"]))
    assert kv.tokens == pytest.approx(0.82e6, rel=0.01)
    assert kv.samples == kv.tokens // 2560
    assert kv_cache(layout(max_total_tokens=10_000)).tokens == 10_000


def test_logits_do_not_grow_with_the_micro_batch():
    """Their part in excess of the hidden states; unchunked they would take 8 bytes x tokens x vocabulary."""
    per_token = (4 + 4 * 2) * 2560
    small, large = logits(layout(max_tokens=4096), True), logits(layout(max_tokens=32768), True)
    assert large - small == (32768 - 4096) * per_token
    assert large < 8 * 32768 * 151936 // 2


def test_the_rows_of_a_piece_are_those_of_the_trainer():
    from pathlib import Path

    source = Path(next(iter(megatron.__path__)), "logprobs.py").read_text()
    assert f"\nROWS = {LOGIT_ROWS}\n" in source


def test_a_colocated_gpu_holds_trainer_and_engine_and_a_split_one_does_not():
    together, apart = estimate(layout()), estimate(layout(colocated=False))
    for memory in (together, apart):
        for phase in memory.phases:
            assert phase.total_bytes == sum(term.num_bytes for term in phase.terms)
    names = [{term.name for term in phase.terms} for phase in together.phases]
    assert all({"weights", "engine weights", "KV cache"} <= found for found in names)
    train, _, rollout, _ = apart.phases
    assert "KV cache" not in {term.name for term in train.terms}
    assert "gradients" not in {term.name for term in rollout.terms}


def test_a_reference_model_is_a_second_copy_of_the_weights():
    before, after = (estimate(layout(reference=on)) for on in (False, True))
    [weights] = [term.num_bytes for term in before.phases[0].terms if term.name == "weights"]
    assert after.phases[0].total_bytes - before.phases[0].total_bytes == weights


def test_a_verdict_is_tight_in_the_last_tenth():
    def verdict(fraction: float) -> str:
        return estimate(layout(mem_fraction=fraction)).verdict

    assert [verdict(f) for f in (0.5, 0.6, 0.7)] == ["fits", "tight", "does not fit"]


def test_full_recomputation_keeps_the_input_of_each_layer():
    kept, layer = activations(layout(), 0)
    assert kept == 36 * 2 * 2560 * 16384
    assert activations(layout(recompute=False), 0) == (36 * layer, 0)


def test_early_stages_keep_more_micro_batches():
    kept = [activations(layout(pp=4, dp=1), stage)[0] for stage in range(4)]
    assert kept == [4 * kept[3], 3 * kept[3], 2 * kept[3], kept[3]]


layouts = st.builds(
    layout,
    st.sampled_from(["qwen3_0_6b", "qwen3_5_35b_a3b", "glm4_7_flash", "minimax_m2", "glm4_9b"]),
    tp=st.sampled_from([1, 2, 4]),
    dp=st.integers(1, 16),
    cp=st.integers(1, 2),
    max_tokens=st.integers(1, 50_000),
    sample_tokens=st.integers(1, 20_000),
    recompute=st.booleans(),
    sequence_parallel=st.booleans(),
    distributed_optimizer=st.booleans(),
    reference=st.booleans(),
    colocated=st.booleans(),
    weight_bytes=st.sampled_from([2, 4]),
    mem_fraction=st.one_of(st.none(), st.floats(0.1, 0.9)),
)


@settings(max_examples=20, deadline=None)
@given(layouts, st.integers(1, 10_000))
def test_more_tokens_never_take_less_and_everything_is_positive(m, more):
    before, after = estimate(m), estimate(replace(m, max_tokens=m.max_tokens + more))
    for one, other in zip(before.phases, after.phases, strict=True):
        assert 0 < one.total_bytes <= other.total_bytes
        assert all(term.num_bytes > 0 for term in one.terms)


@settings(max_examples=20, deadline=None)
@given(layouts)
def test_more_ranks_never_raise_the_state_of_one(m):
    def weights(tp: int, dp: int, ep: int) -> tuple[int, int, int]:
        [terms] = state(replace(m, tp=tp, dp=dp, ep=ep))
        return terms["weights"], terms["gradients"], terms["optimizer"]

    alone = weights(1, m.dp, 1)
    assert all(now <= was for now, was in zip(weights(2, m.dp, 1), alone, strict=True))
    assert all(now <= was for now, was in zip(weights(1, 2 * m.dp, 1), alone, strict=True))
    assert all(now <= was for now, was in zip(weights(1, m.dp, 2)[:2], alone[:2], strict=True))
    assert engine_weights(replace(m, engine_tp=2)) < engine_weights(replace(m, engine_tp=1))


@settings(max_examples=20, deadline=None)
@given(layouts)
def test_a_remedy_lowers_the_worst_phase(m):
    before = worst_phase(estimate(m)).total_bytes
    for remedy in remedies(m, lambda _: True):
        assert worst_phase(remedy.memory).total_bytes < before
        assert remedy.memory == estimate(remedy.layout)


@settings(max_examples=12, deadline=None)
@given(layouts)
def test_what_is_suggested_fits(m):
    changes = suggest(m, lambda _: True)
    already = estimate(m)
    if already.verdict != "does not fit" and already.kv.samples >= 1:
        assert changes == {}
    elif changes is not None:
        assert changes


def test_every_kind_of_gpu_in_the_schema_has_a_size():
    from typing import get_args

    from rlrun.config.sections.placement import PlacementConfig

    assert set(get_args(PlacementConfig.model_fields["gpu"].annotation)) == set(GPUS)


def test_host_memory_counts_processes_and_the_state_that_a_checkpoint_collects():
    m = layout(dp=4, tp=2)
    [terms] = state(replace(m, distributed_optimizer=False))
    assert host_bytes(m, 8, 16) == 16 * 4 * GIB + 2 * terms["optimizer"]


def test_a_layer_keeps_the_tensors_that_were_counted_in_the_trainer():
    """h 64, q 128, k 64, I 192, bfloat16: what autograd saved a token and layer of a tiny Qwen3, without the second
    float32 copy of a norm (CPU only) and statistics of a few bytes, by name."""
    tiny = replace(
        spec("qwen3_4b"), hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=32, ffn_hidden_size=192, num_layers=2
    )
    norms = 2 * (256 + 128) + 512 + 256
    attention = 128 + 256 + 512 + 256 + 256  # k, q, projection with v, output of the kernel, output
    mlp = 768 + 3 * 384
    assert layer_bytes(layout(spec=tiny, tp=1), 0) == norms + attention + mlp + 4 * 64
