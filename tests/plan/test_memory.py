"""GPU memory against worked examples, published cache sizes, and what has to hold for every layout."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.backends import megatron
from rlrun.plan.activations import LOGIT_ROWS, activations, layer_bytes, logits
from rlrun.plan.kv import engine_weights, kv_bytes_per_token, kv_cache, state_bytes_per_request
from rlrun.plan.layout import GPUS
from rlrun.plan.memory import estimate, state, worst_phase
from rlrun.plan.remedies import remedies, suggest
from rlrun.plan.types import MemoryPlan, PhaseMemory

sys.path.insert(0, str(Path(__file__).parent))
from layouts import layout, spec


def phase_of(memory: MemoryPlan, name: str) -> PhaseMemory:
    [found] = [phase for phase in memory.phases if phase.phase == name]
    return found


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
    source = Path(next(iter(megatron.__path__)), "logprobs.py").read_text()
    assert f"\nROWS = {LOGIT_ROWS}\n" in source


def test_a_colocated_gpu_holds_trainer_and_engine_and_a_split_one_does_not():
    together, apart = estimate(layout()), estimate(layout(colocated=False))
    for memory in (together, apart):
        for phase in memory.phases:
            assert phase.total_bytes == sum(term.num_bytes for term in phase.terms)
    names = [{term.name for term in phase.terms} for phase in together.phases]
    assert all({"weights", "engine weights", "KV cache"} <= found for found in names)
    train, rollout = ({term.name for term in phase_of(apart, name).terms} for name in ("train", "rollout"))
    assert "KV cache" not in train
    assert "gradients" not in rollout


def test_a_reference_model_is_a_second_copy_of_the_weights():
    before, after = (estimate(layout(reference=on)) for on in (False, True))
    [weights] = [term.num_bytes for term in before.phases[0].terms if term.name == "weights"]
    assert after.phases[0].total_bytes - before.phases[0].total_bytes == weights


def test_a_verdict_is_tight_in_the_last_tenth():
    def verdict(fraction: float) -> str:
        return estimate(layout(mem_fraction=fraction)).verdict

    assert [verdict(f) for f in (0.4, 0.55, 0.7)] == ["fits", "tight", "does not fit"]


def test_full_recomputation_keeps_the_input_of_each_layer():
    kept, layer = activations(layout(), 0)
    assert kept == 36 * 2 * 2560 * 16384
    assert activations(layout(recompute=False), 0) == (36 * layer, 0)


def test_context_parallel_ranks_keep_the_keys_and_values_that_their_chunks_see():
    """Of two ranks each has half of the tokens, and 2 + 1/2 times its own keys and values in the order of the kernel:
    8 heads of 128 each, in bfloat16, half of them on each of two tensor-parallel ranks."""
    _, one = activations(layout(dp=1, max_tokens=8192), 0)
    _, two = activations(layout(dp=1, cp=2, max_tokens=8192), 0)
    assert two - one == 8192 * 2.5 * (2 * 8 * 128) / 2 * 2
    latent = [activations(layout("glm4_7_flash", dp=1, cp=cp, max_tokens=8192), 0)[1] for cp in (1, 4)]
    assert latent[1] - latent[0] == 8192 * 4.5 * 20 * (192 + 64 + 256) / 2 * 2


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
