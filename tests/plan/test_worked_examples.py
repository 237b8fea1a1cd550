"""Layouts of large models that were worked out by hand with other conventions for activations: fused kernels, sequence
parallelism, full recomputation, and float32 logits with their gradient made in one piece. State has to agree, and the
totals too when activations and logits are counted in that way."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.plan.activations import logits, whole_logits
from rlrun.plan.kv import engine_weights, kv_cache
from rlrun.plan.layout import GIB, GPUS, Layout
from rlrun.plan.memory import estimate, floor_bytes, state
from rlrun.plan.parameters import is_linear, is_sparse, stage_starts

sys.path.insert(0, str(Path(__file__).parent))
from layouts import layout, spec

K16, K20 = 16384, 20480
# model, sizes, tokens of a micro-batch before cp, GiB of: weights, gradients, optimizer, activations and logits, total
WORKED = [
    ("qwen3_4b", {"tp": 2, "dp": 4}, K16, (3.7, 7.5, 5.6), 2.2 + 9.3, 28.3),
    ("qwen3_30b_a3b", {"tp": 4, "dp": 2, "ep": 8}, K20, (7.5, 15.0, 42.7), 1.6 + 5.8, 72.6),
    ("glm4_7_355b", {"tp": 8, "pp": 4, "cp": 2, "dp": 1, "ep": 16}, K16, (11.2, 22.4, 63.9), 0.5 + 1.2, 99.1),
    ("minimax_m2", {"tp": 4, "pp": 2, "dp": 4, "ep": 16}, K16, (14.0, 28.1, 79.9), 1.6 + 6.1, 129.8),
]
# model, sizes, total on these GPUs, total with the optimizer on the host; 16 k tokens, but for glm5_2, where each of
# eight context-parallel ranks has 8 k.
OTHERS = [
    ("qwen3_5_35b_a3b", {"tp": 4, "dp": 2, "ep": 8}, 83.5, 35.0),
    ("qwen3_5_35b_a3b", {"tp": 4, "dp": 4, "ep": 16}, 48.0, None),
    ("qwen3_5_27b", {"tp": 8, "dp": 1}, 61.9, None),
    ("qwen3_5_27b", {"tp": 8, "dp": 2}, 43.1, None),
    ("glm4_5_air", {"tp": 4, "pp": 2, "dp": 4, "ep": 16}, 67.3, None),
    ("glm4_5_air", {"tp": 4, "pp": 2, "dp": 8, "ep": 16}, 48.3, 29.2),
    ("glm4_7_flash", {"tp": 2, "dp": 4, "ep": 8}, 79.8, 37.8),
    ("glm4_7_355b", {"tp": 8, "pp": 4, "cp": 2, "dp": 2, "ep": 16}, 67.2, 35.2),
    (
        "glm5_2",
        {
            "tp": 4,
            "pp": 8,
            "cp": 8,
            "dp": 1,
            "ep": 32,
            "first_stage_layers": 14,
            "last_stage_layers": 16,
        },
        93.8,
        38.0,
    ),
]


def worked(model: str, sizes: dict[str, int], tokens: int = K16, **changes: object) -> Layout:
    """`tokens` are those of a whole micro-batch, of which context parallelism gives a GPU its part."""
    return layout(model, sequence_parallel=True, max_tokens=tokens // sizes.get("cp", 1), **sizes, **changes)


def fused_layer(m: Layout, layer: int) -> float:
    """Bytes a token of one layer with fused kernels, of one rank."""
    s, h = m.spec, m.spec.hidden_size
    if is_linear(s, layer):
        g = s.linear_attention
        qk, v = g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim
        mixer = 2 * (2 * qk + v) + 4 * g.num_value_heads * g.key_dim + 3 * v
    elif s.mla is not None:
        a = s.mla
        heads = s.num_heads * (2 * (a.nope_dim + a.rope_dim) + 2 * a.v_dim)
        mixer = 2 * a.q_rank + 2 * (a.kv_rank + a.rope_dim) + heads
    else:
        mixer = (2 * s.num_heads * (2 if s.output_gate else 1) + 2 * s.num_kv_heads) * s.head_dim
    ffn = 3 * s.ffn_hidden_size
    if is_sparse(s, layer):
        ffn = s.moe.experts_per_token * (2 * h + 3 * s.moe.ffn_hidden_size) + 3 * s.moe.shared_ffn_hidden_size
    return 2 * (4 * h + mixer + ffn) / m.tp


def by_hand(m: Layout, recompute: bool = True) -> list[float]:
    """GiB of activations and unchunked logits, stage by stage, in the conventions of these examples."""
    found = []
    for stage, (start, size) in enumerate(zip(stage_starts(m.stages), m.stages, strict=True)):
        layers = [fused_layer(m, layer) for layer in range(start, start + size)]
        kept = size * 2 * m.spec.hidden_size / m.tp if recompute else sum(layers)
        total = ((m.pp - stage) * kept + (max(layers) if recompute else 0)) * m.tokens
        found.append((total + (whole_logits(m) if stage == m.pp - 1 else 0)) / GIB)
    return found


def totals(m: Layout, recompute: bool = True) -> list[float]:
    own = [sum(terms.values()) / GIB for terms in state(m)]
    return [a + b for a, b in zip(own, by_hand(m, recompute), strict=True)]


@pytest.mark.parametrize(("model", "sizes", "tokens", "gib", "more", "total"), WORKED)
def test_the_worked_examples_come_out(model, sizes, tokens, gib, more, total):
    """To 3 %. Ours takes less for logits, because they are made in pieces, and says both."""
    m = worked(model, sizes, tokens)
    index = max(range(m.pp), key=lambda stage: totals(m)[stage])
    terms = state(m)[index]
    for name, expected in zip(("weights", "gradients", "optimizer"), gib, strict=True):
        assert terms[name] / GIB == pytest.approx(expected, rel=0.03)
    assert totals(m)[index] == pytest.approx(total, rel=0.03)
    assert by_hand(m)[index] == pytest.approx(more, rel=0.05)
    assert estimate(m).whole_logits_bytes == whole_logits(m)
    if model == "qwen3_4b":
        assert totals(m, recompute=False) == [pytest.approx(53.4, rel=0.03)]
        assert logits(m, train=True) < whole_logits(m) / 3


@pytest.mark.parametrize(("model", "sizes", "total", "offloaded"), OTHERS)
def test_the_other_examples_come_out(model, sizes, total, offloaded):
    m = worked(model, sizes, 4 * K16 if model == "glm5_2" else K16)
    assert max(totals(m)) == pytest.approx(total, rel=0.03)
    if offloaded is not None:
        assert max(totals(replace(m, optimizer_offload=True))) == pytest.approx(offloaded, rel=0.03)


@pytest.mark.parametrize(
    ("model", "sizes", "gib"),
    [
        ("qwen3_30b_a3b", {"tp": 4, "dp": 2, "ep": 8}, 342),
        ("glm4_7_355b", {"tp": 8, "pp": 4, "cp": 2, "dp": 1, "ep": 16}, 511),
        ("minimax_m2", {"tp": 4, "pp": 2, "dp": 4, "ep": 16}, 639),
    ],
)
def test_an_optimizer_on_the_host_takes_what_was_worked_out_for_a_node(model, sizes, gib):
    host = estimate(worked(model, sizes, optimizer_offload=True)).host
    [optimizer] = [term.num_bytes for term in host.terms if term.name == "optimizer"]
    assert optimizer / GIB == pytest.approx(gib, rel=0.03)


def test_lower_precision_takes_what_was_worked_out():
    """bfloat16 gradients and moments of Qwen3-30B-A3B on 8 GPUs: 43.4 GiB of state."""
    m = worked("qwen3_30b_a3b", {"tp": 4, "dp": 2, "ep": 8}, gradient_bytes=2, moment_bytes=2)
    [terms] = state(m)
    assert sum(terms.values()) / GIB == pytest.approx(43.4, rel=0.03)


@pytest.mark.parametrize(
    ("model", "world", "gib", "offloaded"), [("glm4_7_355b", 64, 92.4, 30.8), ("minimax_m2", 32, 119.8, 39.9)]
)
def test_no_layout_goes_below_18_bytes_a_parameter(model, world, gib, offloaded):
    m = layout(model, tp=1, dp=world)
    assert floor_bytes(m) / GIB == pytest.approx(gib, rel=0.001)
    assert floor_bytes(replace(m, optimizer_offload=True)) / GIB == pytest.approx(offloaded, rel=0.002)
    for tp, pp in ((1, 1), (8, 1), (4, 2)):
        m = layout(model, tp=tp, pp=pp, dp=world // (tp * pp), ep=world // pp if model == "minimax_m2" else 8)
        assert max(sum(terms.values()) for terms in state(m)) >= floor_bytes(m)


@pytest.mark.parametrize(
    ("model", "tp", "gib", "tokens"),
    [
        ("qwen3_4b", 2, 3.7, 0.82e6),
        ("qwen3_30b_a3b", 8, 7.1, 2.3e6),
        ("glm4_7_355b", 16, 41.2, 0.43e6),
        ("glm4_7_355b", 32, 20.7, 0.90e6),
        ("minimax_m2", 8, 53.3, 0.23e6),
    ],
)
def test_engines_hold_what_was_worked_out(model, tp, gib, tokens):
    """0.75 of 80 GiB for weights and KV cache."""
    m = layout(model, engine_tp=tp, mem_fraction=0.75 * 80 / GPUS["h100_80gb"])
    assert engine_weights(m) / GIB == pytest.approx(gib, rel=0.03)
    assert kv_cache(m).tokens == pytest.approx(tokens, rel=0.03)


def test_the_floor_counts_every_parameter_once():
    m = layout("glm4_7_355b", tp=1, dp=64)
    assert floor_bytes(m) == -(-18 * spec("glm4_7_355b").num_parameters // 64)
