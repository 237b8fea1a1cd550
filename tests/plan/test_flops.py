"""Operations of a forward pass against counts by hand, for one model of each kind of layer."""

from __future__ import annotations

import pytest

from rlrun.plan.build import load_plan
from rlrun.plan.estimate.flops import causal_pairs, forward
from rlrun.plan.types import ModelSpec


def spec(model: str) -> ModelSpec:
    return load_plan(
        ["+experiment=qwen3_grpo", "placement=cpu_1", "rollout.max_response_tokens=1024", f"model={model}"]
    ).model.spec


def test_a_dense_model_takes_two_operations_a_parameter_that_is_not_a_norm():
    """Qwen3-4B, whose output layer is the embedding: 2N a token forward, so 6N with the backward pass."""
    norms = 36 * (2 * 2560 + 2 * 128) + 2560
    f = forward(spec("qwen3_4b"))
    assert f.layers + f.head == 2 * (4_022_468_096 - norms)
    assert f.pair == f.decode_pair == 36 * 4 * 32 * 128


def test_experts_count_as_often_as_a_token_uses_them():
    """Qwen3-30B-A3B, 8 of 128 experts: 3.0 of 30.5 billion parameters at work."""
    attention = 2 * (2048 * (4096 + 2 * 512) + 4096 * 2048)
    experts, router = 8 * 6 * 2048 * 768, 2 * 2048 * 128
    f = forward(spec("qwen3_30b_a3b"))
    assert f.layers == 48 * (attention + experts + router) == 5_460_983_808
    assert f.head == 2 * 2048 * 151_936


def test_a_delta_net_costs_the_same_at_every_length():
    """Qwen3.5-35B-A3B: 30 of 40 layers have no pairs."""
    q, v = 16 * 128, 32 * 128
    linear = 2 * (2048 * (2 * q + 2 * v + 2 * 32) + v * 2048 + (2 * q + v) * 4) + 6 * 32 * 128 * 128
    full = 2 * 2048 * (2 * 4096 + 2 * 512 + 4096)  # the query projection is doubled by its gate
    mlp = 6 * 2048 * (8 * 512 + 512) + 2 * 2048 * (256 + 1)
    f = forward(spec("qwen3_5_35b_a3b"))
    assert f.layers == 30 * linear + 10 * full + 40 * mlp
    assert f.pair == 10 * 4 * 16 * 256


def test_latent_attention_counts_its_own_widths():
    """GLM-4.7-Flash: 20 heads of 192 + 64 and 256, latents of 768 and 512; decoding compares latents."""
    s = spec("glm4_7_flash")
    m = s.mla
    assert m is not None
    heads = (s.num_heads, m.q_rank, m.kv_rank, m.nope_dim, m.rope_dim, m.v_dim)
    assert heads == (20, 768, 512, 192, 64, 256)
    mixer = 2 * (2048 * 768 + 768 * 20 * 256 + 2048 * (512 + 64) + 512 * 20 * (192 + 256) + 20 * 256 * 2048)
    dense, sparse = 6 * 2048 * 10240, 6 * 2048 * (4 + 1) * 1536 + 2 * 2048 * 64
    f = forward(s)
    assert f.layers == 47 * mixer + dense + 46 * sparse
    assert f.pair == 47 * 2 * 20 * (192 + 64 + 256)
    assert f.decode_pair == 47 * 2 * 20 * (2 * 512 + 64)


def test_sparse_attention_sees_its_top_k_and_indexes_everything():
    """GLM-5.2: 2,048 keys a query; 21 of 78 layers (0, 1, 2, 6, ... 74) have an indexer of their own."""
    f = forward(spec("glm5_2"))
    assert f.index_pair == 21 * 2 * 32 * 128
    assert f.top_k == 2048
    short, long = 1000, 100_000
    assert f.sequence(short, causal_pairs(short)) == pytest.approx(
        short * (f.layers + f.head) + causal_pairs(short) * (f.pair + f.index_pair)
    )
    assert f.decode(long) == f.layers + f.head + 2048 * f.decode_pair + long * f.index_pair


@pytest.mark.parametrize("model", ["qwen3_4b", "qwen3_5_35b_a3b", "minimax_m2", "glm4_9b"])
def test_a_sequence_is_the_sum_of_its_tokens_decoded_one_by_one(model):
    f, length = forward(spec(model)), 57
    one_by_one = sum(f.decode(seen) for seen in range(1, length + 1))  # a token sees itself
    assert f.sequence(length, causal_pairs(length)) == one_by_one


def test_causal_pairs_of_random_lengths_come_from_two_moments():
    lengths = [3, 10, 20]
    mean, square = sum(lengths) / 3, sum(n * n for n in lengths) / 3
    assert causal_pairs(mean, square) == pytest.approx(sum(n * (n + 1) / 2 for n in lengths) / 3)
