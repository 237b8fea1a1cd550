"""The attention core on one NVIDIA GPU: the kernel for ragged rows, one call a sample, and both against float32."""

from __future__ import annotations

import pytest
import torch

from rlrun.data import zigzag

pytestmark = pytest.mark.gpu

LENGTHS = (640, 8, 24, 1032, 128)
SHAPES = {
    "qwen3_4b": (32, 8, 128, 128),
    "latent": (16, 16, 192, 128),
    "wide": (8, 2, 256, 256),
}


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def inputs(shape, length, batch=1):
    heads, groups, width, value_width = shape
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = ((heads, width), (groups, width), (groups, value_width), (heads, value_width))
    return [torch.randn(length, batch, *size, generator=generator, device="cuda") for size in sizes]


def attended(shape, cp, rank, dtype, ragged, lengths=LENGTHS, batch=1):
    """Output and gradients of rank `rank` of `cp`, whose gathered keys are all keys."""
    from rlrun.backends.megatron.attention import attend, pieces

    device = torch.device("cuda", torch.cuda.current_device())
    query, key, value, upstream = (x.to(dtype) for x in inputs(shape, sum(lengths), batch))
    mine = torch.from_numpy(zigzag.mine(lengths, cp, rank)).to(device)
    order = torch.from_numpy(zigzag.order(lengths, cp)).to(device)
    parts = pieces(lengths, cp, rank, device)
    leaves = [x.requires_grad_() for x in (query[mine].clone(), key, value)]
    seen = order if parts.index is None else order[parts.index]
    output = attend(leaves[0], leaves[1][seen], leaves[2][seen], parts, None, ragged)
    output.backward(upstream[mine])
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def near(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert (one.float() - other.float()).norm() < tolerance * other.float().norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("cp", "rank"), [(1, 0), (2, 0), (2, 1), (4, 1)])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_kernel_for_ragged_rows_equals_one_call_a_sample(shape, cp, rank, dtype):
    exact = attended(SHAPES[shape], cp, rank, torch.float32, ragged=False)
    apart = attended(SHAPES[shape], cp, rank, dtype, ragged=False)
    together = attended(SHAPES[shape], cp, rank, dtype, ragged=True)
    near(together, exact, 2e-2)
    near(apart, exact, 2e-2)
    near(together, apart, 1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_padded_batch_on_two_ranks_is_the_rows_of_one(rank, dtype):
    shape, lengths = SHAPES["qwen3_4b"], (512,)
    whole = attended(shape, 1, 0, torch.float32, None, lengths, batch=3)
    found = attended(shape, 2, rank, dtype, None, lengths, batch=3)
    mine = torch.from_numpy(zigzag.mine(lengths, 2, rank)).cuda()
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-3
    near(found[:2], [x[mine] for x in whole[:2]], tolerance)


def test_a_packed_row_in_16_bits_takes_the_kernel_and_others_do_not():
    from rlrun.backends.megatron.attention import takes_ragged

    row = torch.zeros(8, 1, 4, 128, dtype=torch.bfloat16, device="cuda")
    assert takes_ragged(row)
    assert not takes_ragged(row.float())
    assert not takes_ragged(row.expand(8, 2, 4, 128))
    assert not takes_ragged(torch.zeros(8, 1, 4, 100, dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("cp", [1, 2])
def test_memory_is_linear_in_the_length_of_a_sample(ragged, cp):
    peaks = []
    for length in (4096, 8192):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        attended(SHAPES["qwen3_4b"], cp, cp - 1, torch.bfloat16, ragged, (length,))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.2 * peaks[0]
