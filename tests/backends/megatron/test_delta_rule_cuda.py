"""On an NVIDIA GPU: torch's own gated delta rule against the CPU, and the kernels of other packages against torch's."""

from __future__ import annotations

import pytest
import torch
from delta_reference import rule_inputs
from torch import Tensor

from rlrun.backends.megatron import delta_rule, short_conv

pytestmark = pytest.mark.gpu
BOUNDS = [None, (0, 70, 73, 300)]


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


def results(inputs: list[Tensor], bounds, kernel: str = "torch") -> list[Tensor]:
    """Output and the gradients of its inputs, float64 on the CPU."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = delta_rule.gated_delta_rule(*leaves, bounds, kernel)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    return [x.double().cpu() for x in (out, *torch.autograd.grad(out, leaves, upstream))]


def relative(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def wide_inputs() -> list[Tensor]:
    """Heads of 128 columns; queries, keys and values rounded to bfloat16."""
    q, k, v, g, beta = (x.unsqueeze(0).cuda() for x in rule_inputs(300, 2, 4, 128, 128, seed=2))
    return [*(x.bfloat16() for x in (q, k, v)), g.float(), beta.float()]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_float32_equals_float64_on_the_cpu(bounds):
    inputs = [x.unsqueeze(0) for x in rule_inputs(300, seed=1)]
    wanted = results(inputs, bounds)
    for found, want in zip(results([x.float().cuda() for x in inputs], bounds), wanted, strict=True):
        assert relative(found, want) < 1e-5


@pytest.mark.parametrize("kernel", ["fla", "flashqla"])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_other_kernels_equal_torchs(kernel, bounds):
    pytest.importorskip(delta_rule.PACKAGES[kernel][0].split(".")[0])
    assert delta_rule.choose_kernel(kernel, torch.device("cuda"), torch.bfloat16) == kernel
    inputs = wide_inputs()
    wanted = results([x.double() for x in inputs], bounds)
    for found, want in zip(results(inputs, bounds, kernel), wanted, strict=True):
        assert relative(found, want) < 2e-2


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_convolution_in_float32_is_not_tf32(bounds):
    x, weight = torch.randn(1, 300, 16, dtype=torch.float64), torch.randn(16, 1, 4, dtype=torch.float64)
    found = short_conv.causal_conv(x.float().cuda(), weight.float().cuda(), bounds)
    assert relative(found.double().cpu(), short_conv.causal_conv(x, weight, bounds)) < 1e-6


@pytest.mark.parametrize("bounds", BOUNDS)
def test_the_convolution_kernel_equals_torchs(bounds):
    pytest.importorskip("causal_conv1d")
    x, weight = torch.randn(1, 300, 16, device="cuda"), torch.randn(16, 1, 4, device="cuda")
    found, wanted = (short_conv.causal_conv(x, weight, bounds, fused) for fused in (True, False))
    assert relative(found.double(), wanted.double()) < 1e-5
