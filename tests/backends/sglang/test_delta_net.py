"""The torch kernels against the equations written with matrices, in float64, one token and one head at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlrun.backends.sglang.delta_net import (
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
    chunk_gated_delta_rule_cpu,
    fused_gdn_gating_cpu,
    fused_qk_gemma_rmsnorm_with_gate_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
    fused_sigmoid_mul_cpu,
    layernorm_fn,
)

KEY_HEADS, HEADS, K, V, SLOTS = 2, 4, 3, 5, 6
LENGTHS = [4, 1, 7]


def tensors(tokens: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (KEY_HEADS, K), "k": (KEY_HEADS, K), "v": (HEADS, V), "a": (HEADS,), "b": (HEADS,)}
    return {name: torch.randn(tokens, *shape, generator=generator) for name, shape in shapes.items()}


A_LOG, DT_BIAS = torch.tensor([0.3, -0.2, 0.1, 0.5]), torch.tensor([0.1, 0.4, -0.3, 0.0])


def by_matrices(x: dict[str, torch.Tensor], state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S <- exp(g) S (I - beta k k^T) + beta v k^T and o = S q / sqrt(K), of one sequence; state [heads, V, K]."""
    x = {name: tensor.double().numpy() for name, tensor in x.items()}
    state, out = state.copy(), np.zeros((len(x["v"]), HEADS, V))
    for t in range(len(x["v"])):
        for h in range(HEADS):
            q, k = (y[t, h // (HEADS // KEY_HEADS)] for y in (x["q"], x["k"]))
            q, k = (y / np.sqrt(y @ y + 1e-6) for y in (q, k))
            decay = np.exp(-np.exp(A_LOG[h].item()) * np.log1p(np.exp(x["a"][t, h] + DT_BIAS[h].item())))
            beta = 1 / (1 + np.exp(-x["b"][t, h]))
            state[h] = decay * state[h] @ (np.eye(K) - beta * np.outer(k, k)) + beta * np.outer(x["v"][t, h], k)
            out[t, h] = state[h] @ q / np.sqrt(K)
    return out, state


def test_the_recurrence_of_a_batch_is_that_of_each_sequence_and_decoding_goes_on_from_it():
    x = tensors(sum(LENGTHS))
    slots = torch.tensor([4, 0, 2])
    pool = torch.randn(SLOTS, HEADS, V, K, generator=torch.Generator().manual_seed(9))
    before = pool.double().numpy().copy()
    bounds = torch.tensor([0, *np.cumsum(LENGTHS)])
    g, beta = fused_gdn_gating_cpu(A_LOG, x["a"], x["b"], DT_BIAS)
    q, k, v = (x[name].unsqueeze(0) for name in "qkv")
    out, last, between = chunk_gated_delta_rule_cpu(
        q, k, v, g, beta, initial_state=pool, initial_state_indices=slots, cu_seqlens=bounds, head_first=False
    )
    assert out.shape == (1, sum(LENGTHS), HEADS, V)
    assert last is None
    assert between is None
    more = tensors(len(LENGTHS), seed=1)
    decoded = fused_sigmoid_gating_delta_rule_update_cpu(
        A_log=A_LOG,
        dt_bias=DT_BIAS,
        **{name: more[name].unsqueeze(0) for name in "qkv"},
        a=more["a"],
        b=more["b"],
        initial_state_source=pool,
        initial_state_indices=slots,
        cu_seqlens=None,
    )
    for i, slot in enumerate(slots.tolist()):
        part = slice(bounds[i], bounds[i + 1])
        expected, state = by_matrices({name: tensor[part] for name, tensor in x.items()}, before[slot])
        np.testing.assert_allclose(out[0, part], expected, atol=1e-5)
        expected, state = by_matrices({name: tensor[i : i + 1] for name, tensor in more.items()}, state)
        np.testing.assert_allclose(decoded[0, i : i + 1], expected, atol=1e-5)
        np.testing.assert_allclose(pool[slot], state, atol=1e-5)
    untouched = [slot for slot in range(SLOTS) if slot not in slots]
    np.testing.assert_array_equal(pool[untouched], before[untouched].astype(np.float32))


def test_a_token_is_computed_alike_in_any_batch():
    x = tensors(64)
    arguments = {"A_log": A_LOG, "dt_bias": DT_BIAS, "initial_state_indices": torch.arange(64)}
    state = torch.randn(64, HEADS, V, K, generator=torch.Generator().manual_seed(9))

    def decode(n: int, pool: torch.Tensor) -> torch.Tensor:
        part = {name: x[name][:n].unsqueeze(0) for name in "qkv"} | {name: x[name][:n] for name in "ab"}
        rows = arguments | {"initial_state_indices": torch.arange(n)}
        return fused_sigmoid_gating_delta_rule_update_cpu(**rows, **part, initial_state_source=pool)

    whole = decode(64, state.clone())
    for n in (1, 3, 32):
        assert torch.equal(decode(n, state.clone())[0], whole[0, :n])


@pytest.mark.parametrize("bias", [None, torch.tensor([0.5, -1.0])])
def test_a_convolution_sees_what_came_before_in_its_sequence_alone(bias):
    width, dim = 4, 2
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(dim, width, generator=generator)
    x = torch.randn(dim, sum(LENGTHS), generator=generator)
    bounds = [0, *np.cumsum(LENGTHS).tolist()]
    slots = torch.tensor([4, 0, 2])
    states = torch.randn(SLOTS, dim, width - 1, generator=generator)
    before = states.clone()
    fresh = torch.tensor([False, True, True])  # has_initial_state
    out = causal_conv1d_fn_cpu(
        x,
        weight,
        bias,
        activation="silu",
        conv_states=states,
        has_initial_state=fresh,
        cache_indices=slots,
        query_start_loc=torch.tensor(bounds),
        seq_lens_cpu=None,
    )
    more = torch.randn(len(LENGTHS), dim, generator=generator)
    decoded = causal_conv1d_update_cpu(more, states, weight, bias, "silu", conv_state_indices=slots)
    for i, slot in enumerate(slots.tolist()):
        history = before[slot] if fresh[i] else torch.zeros(dim, width - 1)
        whole = torch.cat([history, x[:, bounds[i] : bounds[i + 1]], more[i].unsqueeze(1)], dim=1).double().numpy()
        for t in range(LENGTHS[i] + 1):
            y = np.array([whole[c, t : t + width] @ weight[c].double().numpy() for c in range(dim)])
            y = y + (0 if bias is None else bias.numpy())
            got = decoded[i] if t == LENGTHS[i] else out[:, bounds[i] + t]
            np.testing.assert_allclose(got, y / (1 + np.exp(-y)), atol=1e-5)
        np.testing.assert_array_equal(states[slot], whole[:, -(width - 1) :].astype(np.float32))


def test_queries_come_with_a_gate_for_each_head():
    heads, dim = 3, 4
    generator = torch.Generator().manual_seed(0)
    q_gate, k = torch.randn(5, heads * 2 * dim, generator=generator), torch.randn(5, 2 * dim, generator=generator)
    w_q, w_k = torch.randn(dim, generator=generator), torch.randn(dim, generator=generator)
    q, k_out, gate = fused_qk_gemma_rmsnorm_with_gate_cpu(q_gate, k, w_q, w_k, 1e-6, dim, heads)
    norm = torch.nn.functional.rms_norm
    for h in range(heads):
        part = q_gate[:, h * 2 * dim : (h + 1) * 2 * dim]
        torch.testing.assert_close(q.view(5, heads, dim)[:, h], norm(part[:, :dim], (dim,), 1 + w_q, 1e-6))
        assert torch.equal(gate.view(5, heads, dim)[:, h], part[:, dim:])
    torch.testing.assert_close(k_out.view(5, 2, dim), norm(k.view(5, 2, dim), (dim,), 1 + w_k, 1e-6))
    x = torch.randn(5, heads * dim, generator=generator)
    expected = x * gate.view(5, -1).sigmoid()
    assert fused_sigmoid_mul_cpu(x, gate, inplace=True) is x
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize(("activation", "function"), [("swish", torch.nn.functional.silu), ("sigmoid", torch.sigmoid)])
def test_the_gated_norm_is_a_norm_times_an_activation(activation, function):
    x, z, weight = torch.randn(5, 8), torch.randn(5, 8), torch.randn(8)
    out = layernorm_fn(x, weight, None, z, 1e-6, is_rms_norm=True, activation=activation)
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (8,), weight, 1e-6) * function(z))
    with pytest.raises(AssertionError, match=r"not Qwen3\.5's norm"):
        layernorm_fn(x, weight, None, z, norm_before_gate=False, is_rms_norm=True)
