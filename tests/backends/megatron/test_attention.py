"""The attention core against the softmax written out in float64: grouped heads, values of another width, packed and
padded rows, and context-parallel ranks played one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from megatron_plans import make_plan

from rlrun.data import zigzag

pytestmark = pytest.mark.engines

CPU = torch.device("cpu")
SHAPES = {
    "one head": (1, 1, 8, 8),
    "grouped": (4, 2, 8, 8),
    "narrow values": (4, 4, 12, 8),
    "wide values": (2, 2, 4, 8),
}
LENGTHS = (12, 4, 20, 8)


def inputs(shape, length, batch=1, dtype=torch.float64):
    heads, groups, width, value_width = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((heads, width), (groups, width), (groups, value_width), (heads, value_width))
    return [torch.randn(length, batch, *size, generator=generator, dtype=dtype) for size in sizes]


def written_out(query, key, value, lengths, scale):
    """[T, b, heads, dv], with the whole T x T matrix."""
    key, value = (x.repeat_interleave(query.shape[2] // x.shape[2], dim=2) for x in (key, value))
    sample, place = np.repeat(np.arange(len(lengths)), lengths), np.arange(sum(lengths))
    seen = torch.from_numpy((sample[:, None] == sample) & (place[None] <= place[:, None]))
    scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * (scale or query.shape[-1] ** -0.5)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhqk,kbhd->qbhd", weights, value)


def with_gradients(function, tensors, upstream):
    """What the function makes of the tensors, and their gradients."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    output = function(*leaves)
    output.backward(upstream)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def in_parts(cp, lengths, scale):
    """The core as `cp` ranks run it; their gathered keys are simply all keys here."""
    from rlrun.backends.megatron.attention import attend, pieces

    def function(query, key, value):
        order = torch.from_numpy(zigzag.order(lengths, cp))
        outputs = []
        for rank in range(cp):
            parts = pieces(lengths, cp, rank, CPU)
            mine = torch.from_numpy(zigzag.mine(lengths, cp, rank))
            seen = order[parts.index] if parts.index is not None else order
            outputs.append(attend(query[mine], key[seen], value[seen], parts, scale))
        return torch.cat(outputs)[torch.from_numpy(zigzag.place(lengths, cp))]

    return function


@pytest.mark.parametrize("scale", [None, 0.37])
@pytest.mark.parametrize("cp", [1, 2, 4])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_outputs_and_gradients_are_those_of_the_softmax_written_out(shape, cp, scale):
    lengths = tuple(zigzag.filled(length, cp) for length in LENGTHS)
    *tensors, upstream = inputs(SHAPES[shape], sum(lengths))
    found = with_gradients(in_parts(cp, lengths, scale), tensors, upstream)
    expected = with_gradients(lambda q, k, v: written_out(q, k, v, lengths, scale), tensors, upstream)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cp", [1, 2])
def test_a_padded_batch_is_one_sample_in_every_row(cp):
    *tensors, upstream = inputs(SHAPES["grouped"], 16, batch=3)
    found = with_gradients(in_parts(cp, (16,), None), tensors, upstream)
    expected = with_gradients(lambda q, k, v: written_out(q, k, v, (16,), None), tensors, upstream)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_blocks_of_queries_that_are_computed_together_do_not_show(monkeypatch):
    from rlrun.backends.megatron import attention

    monkeypatch.setattr(attention, "CPU_ROWS", 3)
    *tensors, upstream = inputs(SHAPES["grouped"], 32)
    found = with_gradients(in_parts(2, (32,), None), tensors, upstream)
    expected = with_gradients(lambda q, k, v: written_out(q, k, v, (32,), None), tensors, upstream)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_no_mask_grows_with_the_square_of_the_sample(monkeypatch):
    """The largest mask of a sample twice as long is twice as large: rows are bounded, columns are keys."""
    from rlrun.backends.megatron import attention

    largest = []
    original = torch.nn.functional.scaled_dot_product_attention

    def watched(*args, attn_mask=None, **kwargs):
        if attn_mask is not None:
            largest[-1] = max(largest[-1], attn_mask.numel())
        return original(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(attention, "CPU_ROWS", 16)
    for length in (256, 512):
        largest.append(0)
        query, key, value, _ = inputs((1, 1, 4, 4), length, dtype=torch.float32)
        in_parts(2, (length,), None)(query, key, value)
    assert largest == [16 * 256, 16 * 512]


@pytest.mark.parametrize("cp", [1, 2])
def test_the_kernel_for_ragged_rows_is_asked_for_the_same(monkeypatch, cp):
    """Played by a loop: `varlen_attn` is causal from the ends of queries and keys for a window of (-1, 0)."""
    from rlrun.backends.megatron import attention

    calls = []

    def played(query, key, value, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
        calls.append((cu_q.dtype, int(cu_q.diff().max()) == max_q, int(cu_k.diff().max()) == max_k, window_size))
        assert enable_gqa == (query.shape[1] != key.shape[1])
        outputs = []
        for first, end, at, last in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
            hidden = (last - at) - (end - first)
            keys = [x[at:last][:, None] for x in (key, value)]
            lead = torch.zeros(int(hidden), 1, *query.shape[1:], dtype=query.dtype)
            rows = torch.cat([lead, query[first:end][:, None]])
            outputs.append(written_out(rows, *keys, [len(rows)], scale)[int(hidden) :, 0])
        return torch.cat(outputs)

    monkeypatch.setattr(attention, "varlen_attn", played)
    monkeypatch.setattr(attention, "takes_ragged", lambda query: True)
    for shape in ("one head", "grouped"):
        *tensors, upstream = inputs(SHAPES[shape], sum(LENGTHS))
        found = with_gradients(in_parts(cp, LENGTHS, 0.37), tensors, upstream)
        expected = with_gradients(lambda q, k, v: written_out(q, k, v, LENGTHS, 0.37), tensors, upstream)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert set(calls) == {(torch.int32, True, True, (-1, 0))}
    assert len(calls) == 2 * cp, "one call a row"


def test_on_a_cpu_there_is_no_kernel_for_ragged_rows():
    from rlrun.backends.megatron.attention import takes_ragged

    assert not takes_ragged(torch.zeros(4, 1, 2, 8, dtype=torch.bfloat16))


def test_latent_attention_is_the_same_on_one_rank_and_on_two(ranks):
    """Megatron's, with keys that are wider than values, and its rotary positions of packed and of padded rows."""
    from attention_jobs import WIDTH

    rng = np.random.default_rng(0)
    rows = {
        name: (*rng.normal(size=(2, length, batch, WIDTH)).astype(np.float32), lengths)
        for name, length, batch, lengths in (("packed", 24, 1, [8, 12, 4]), ("padded", 16, 2, None))
    }
    rows = {name: (hidden, lengths, upstream) for name, (hidden, upstream, lengths) in rows.items()}
    one = ranks.run(1, "latent", make_plan(), rows)[0]
    two = ranks.run(2, "latent", make_plan(cp=2), rows)
    for name, (hidden, lengths, _) in rows.items():
        there = zigzag.place(lengths or [len(hidden)], 2)
        for part in ("output", "input"):
            found = np.concatenate([result[name][part] for result in two])[there]
            np.testing.assert_allclose(found, one[name][part], atol=1e-4, rtol=1e-4)
            assert np.abs(found).max() > 0.1
        for key, want in one[name]["weights"].items():
            found = sum(result[name]["weights"][key] for result in two)
            assert np.linalg.norm(found - want) < 1e-5 * np.linalg.norm(want), (name, key)


def test_many_short_samples_are_computed_together_and_long_ones_apart():
    from rlrun.backends.megatron.attention import is_ragged_faster, pieces

    def together(lengths, heads=32):
        query = torch.empty(1, 1, heads, 128).expand(sum(lengths), 1, heads, 128)
        return is_ragged_faster(query, pieces(tuple(lengths), 1, 0, torch.device("cpu")))

    assert together([128] * 128)
    assert together([1024] * 16)
    assert not together([8192] * 2)
    assert not together([16384])
    assert together([2048] * 8, heads=4)  # too small a piece of work to be worth a call
