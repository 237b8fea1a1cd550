from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlrun.backends.sglang.seeded import (
    _addmm_in_blocks,
    bmm_in_blocks,
    matmul_in_blocks,
    sample_with_seed,
    sigmoid,
    uniforms,
)

SIGNIFICANCE = 1e-4  # seeds are fixed: a test passes or fails for ever


def draw(probs: list[float], seeds: np.ndarray, position: int = 7) -> np.ndarray:
    logprobs = torch.tensor(probs, dtype=torch.float64).log().expand(len(seeds), -1)
    positions = torch.full((len(seeds),), position)
    return sample_with_seed(logprobs, torch.from_numpy(seeds), positions).squeeze(-1).numpy()


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_uniforms_are_uniform_and_uncorrelated_along_seeds_and_positions(vary):
    count = np.arange(20_000, dtype=np.int64)
    fixed = np.full_like(count, 1234)
    u = uniforms(count, fixed) if vary == "seed" else uniforms(fixed, count)
    assert stats.kstest(u, "uniform").pvalue > SIGNIFICANCE
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(len(u))
    assert u.min() > 0
    assert u.max() < 1


def test_a_seed_and_the_next_position_are_no_other_seed():
    """(seed, position) must not collide along diagonals, or neighbouring samples would repeat each other's noise."""
    seeds, positions = np.meshgrid(np.arange(200), np.arange(200))
    u = uniforms(seeds.ravel(), positions.ravel())
    assert len(np.unique(u)) == u.size


def test_samples_follow_the_distribution():
    probs = [0.5, 0.25, 0.15, 0.07, 0.03]
    counts = np.bincount(draw(probs, np.arange(20_000)), minlength=5)
    assert stats.chisquare(counts, np.array(probs) * 20_000).pvalue > SIGNIFICANCE


def test_tokens_of_one_sample_are_independent():
    seeds = np.arange(20_000)
    first, second = draw([0.5, 0.5], seeds, position=5), draw([0.5, 0.5], seeds, position=6)
    table = np.histogram2d(first, second, bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > SIGNIFICANCE


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**20))
def test_an_index_of_probability_zero_is_never_drawn(seed, position):
    logprobs = torch.tensor([[-torch.inf, 0.0, -torch.inf, -1.0, -torch.inf]])
    index = sample_with_seed(logprobs, torch.tensor([seed]), torch.tensor([position]))
    assert index.item() in (1, 3)


def test_log_probs_need_not_be_normalised():
    logprobs = torch.tensor([[0.1, 0.7, 0.2]]).log().expand(500, -1)
    seeds, positions = torch.arange(500), torch.zeros(500, dtype=torch.int64)
    assert torch.equal(sample_with_seed(logprobs, seeds, positions), sample_with_seed(logprobs + 3, seeds, positions))


def test_a_row_is_sampled_alike_in_any_batch():
    logprobs = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    seeds, positions = torch.arange(64) * 977, torch.arange(64)
    whole = sample_with_seed(logprobs, seeds, positions)
    assert whole.shape == (64, 1)
    for i in (0, 13, 63):
        assert torch.equal(whole[i], sample_with_seed(logprobs[i : i + 1], seeds[i : i + 1], positions[i : i + 1])[0])


@pytest.mark.parametrize(("k", "m"), [(128, 384), (256, 128), (64, 32)])
def test_a_row_of_a_product_does_not_depend_on_the_batch(k, m):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(200, k, generator=generator), torch.randn(m, k, generator=generator).T
    whole = matmul_in_blocks(a, b)
    torch.testing.assert_close(whole, a @ b, atol=1e-4, rtol=1e-5)
    for n in (1, 2, 5, 31, 32, 33, 64, 100):
        assert torch.equal(matmul_in_blocks(a[:n], b), whole[:n]), n
        assert torch.equal(matmul_in_blocks(a[-n:], b), whole[-n:]), n


@pytest.mark.parametrize(("heads", "k", "m"), [(4, 32, 64), (1, 64, 32)])
def test_a_row_of_a_batched_product_does_not_depend_on_the_batch(heads, k, m):
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(200, heads, k, generator=generator).transpose(0, 1)  # as latent attention has it
    b = torch.randn(heads, k, m, generator=generator)
    whole = bmm_in_blocks(a, b)
    torch.testing.assert_close(whole, torch.einsum("pnk,pkm->pnm", a, b), atol=1e-4, rtol=1e-5)
    for n in (1, 2, 5, 31, 32, 33, 64, 100):
        assert torch.equal(bmm_in_blocks(a[:, :n], b), whole[:, :n]), n
        assert torch.equal(bmm_in_blocks(a[:, -n:], b), whole[:, -n:]), n
    assert bmm_in_blocks(a[:, :0], b).shape == (heads, 0, m)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sigmoid_does_not_depend_on_its_place(dtype):
    x = torch.randn(1001, generator=torch.Generator().manual_seed(0)).mul(20).to(dtype)
    whole = sigmoid(x)
    assert whole.dtype == dtype
    torch.testing.assert_close(whole, torch.sigmoid(x))
    for n in (1, 3, 8, 17, 999):
        assert torch.equal(sigmoid(x[-n:]), whole[-n:]), n
    assert sigmoid(torch.tensor([-1e4, 1e4, torch.inf, -torch.inf])).tolist() == [0, 1, 1, 0]


def test_the_product_with_a_bias_agrees_with_torch():
    generator = torch.Generator().manual_seed(0)
    bias, a, b = (torch.randn(*s, generator=generator) for s in ((6,), (5, 4), (4, 6)))
    expected = torch.addmm(bias, a, b, beta=0.5, alpha=2.0)
    torch.testing.assert_close(_addmm_in_blocks(bias, a, b, beta=0.5, alpha=2.0), expected)
    assert matmul_in_blocks(a[:0], b).shape == (0, 6)
