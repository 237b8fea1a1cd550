"""The chunked gated delta rule and the convolution, against their definitions token by token."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType

import pytest
import torch
from delta_reference import convolved, recurrent, rule_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlrun.backends.megatron import delta_rule, short_conv
from rlrun.errors import RunFailed

LENGTHS = st.lists(st.integers(0, 140), min_size=1, max_size=4).filter(lambda lengths: sum(lengths) > 0)


def bounds_of(lengths: list[int]) -> tuple[int, ...]:
    return tuple(itertools.accumulate(lengths, initial=0))


def gradients(outputs: Tensor, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(outputs, inputs, upstream))


def compare(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance * b.abs().max(), i


def rule_by_definition(inputs: list[Tensor], bounds: tuple[int, ...]) -> Tensor:
    pieces = [recurrent(*(x[a:b] for x in inputs)) for a, b in itertools.pairwise(bounds)]
    return torch.cat(pieces)


@settings(max_examples=12, deadline=None)
@given(LENGTHS, st.sampled_from([(1, 1), (2, 4), (2, 2), (1, 3)]), st.integers(0, 1000))
def test_packed_samples_agree_with_the_recurrence(lengths, heads, seed):
    bounds = bounds_of(lengths)
    inputs = [x.requires_grad_() for x in rule_inputs(sum(lengths), *heads, seed=seed)]
    wanted = rule_by_definition(inputs, bounds)
    upstream = torch.randn_like(wanted)
    wanted_gradients = gradients(wanted, inputs, upstream)
    found = delta_rule.gated_delta_rule(*(x.unsqueeze(0) for x in inputs), bounds)[0]
    compare([found, *gradients(found, inputs, upstream)], [wanted, *wanted_gradients], 1e-10)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_rows_of_a_batch_are_samples(length):
    inputs = [torch.stack(x) for x in zip(*(rule_inputs(length, seed=i) for i in range(3)), strict=True)]
    found = delta_rule.gated_delta_rule(*inputs)
    wanted = torch.stack([recurrent(*row) for row in zip(*inputs, strict=True)])
    compare([found], [wanted], 1e-12)


def test_a_sample_does_not_depend_on_what_is_packed_with_it():
    """Not approximately: the numbers of other samples are never mixed in."""
    lengths = [70, 3, 129, 64]
    bounds = bounds_of(lengths)
    inputs = [x.float() for x in rule_inputs(sum(lengths), seed=3)]
    packed = delta_rule.gated_delta_rule(*(x.unsqueeze(0) for x in inputs), bounds)[0]
    poisoned = [x.clone() for x in inputs]
    for x in poisoned:
        x[73:202] = torch.nan
    again = delta_rule.gated_delta_rule(*(x.unsqueeze(0) for x in poisoned), bounds)[0]
    assert again[73:202].isnan().all()
    rest = torch.cat([torch.arange(73), torch.arange(202, bounds[-1])])
    assert torch.equal(again[rest], packed[rest])


def test_float32_stays_close_over_many_chunks():
    """As far as float32 reaches, also where a chunk's decays are e^-1000 and a plain ratio of them would be inf."""
    inputs = list(rule_inputs(700, seed=5))
    inputs[3] = inputs[3] * 20
    assert inputs[3][:64].sum() < -1000
    wide = [x.clone().requires_grad_() for x in inputs]
    wanted = recurrent(*wide)
    upstream = torch.randn_like(wanted)
    narrow = [x.float().requires_grad_() for x in inputs]
    found = delta_rule.gated_delta_rule(*(x.unsqueeze(0) for x in narrow))[0]
    assert found.dtype == torch.float32
    found_gradients = gradients(found, narrow, upstream.float())
    wanted_gradients = gradients(wanted, wide, upstream)
    compare([found.double(), *(x.double() for x in found_gradients)], [wanted, *wanted_gradients], 2e-5)


def test_bfloat16_rounds_only_what_goes_in_and_out():
    q, k, v, g, beta = rule_inputs(150, seed=6)
    q, k, v = (x.bfloat16() for x in (q, k, v))
    found = delta_rule.gated_delta_rule(*(x.unsqueeze(0) for x in (q, k, v, g.float(), beta.float())))[0]
    assert found.dtype == torch.bfloat16
    wanted = recurrent(q.double(), k.double(), v.double(), g, beta)
    assert ((found.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-6).all()


def test_the_gradient_is_that_of_finite_differences():
    inputs = tuple(x.requires_grad_() for x in rule_inputs(70, 1, 2, 3, 2, seed=8))
    rule = lambda *x: delta_rule.chunked(*x, (0, 66, 70))  # noqa: E731
    assert torch.autograd.gradcheck(rule, inputs, fast_mode=True)


def test_recomputation_keeps_the_arguments_alone_and_changes_no_bit():
    bounds, inputs = (0, 90, 400), [x.float().unsqueeze(0).requires_grad_() for x in rule_inputs(400, seed=9)]

    def run(recompute: bool) -> tuple[int, list[Tensor]]:
        kept: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            out = delta_rule.gated_delta_rule(*inputs, bounds, recompute=recompute)
        bytes_kept = sum(kept.values())
        return bytes_kept, [out, *gradients(out, inputs, torch.ones_like(out))]

    (plain, wanted), (lean, found) = run(False), run(True)
    assert lean <= sum(4 * x.numel() for x in inputs) < plain
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@given(LENGTHS)
def test_chunks_hold_every_token_once_and_no_chunk_two_samples(lengths):
    bounds = bounds_of(lengths)
    layout = delta_rule.chunks_of(bounds, 64, torch.device("cpu"))
    slots, total = layout.slots.tolist(), bounds[-1]
    assert sorted(s for s in slots if s != total) == list(range(total))
    assert [slots[p] for p in layout.places.tolist()] == list(range(total))
    assert sum(layout.active) * 64 == len(slots)
    assert sum(layout.active) == sum(-(-n // 64) for n in lengths)
    assert list(layout.active) == sorted(layout.active, reverse=True)
    sample = torch.bucketize(torch.arange(total), torch.tensor(bounds[1:]), right=True).tolist()
    for start in range(0, len(slots), 64):
        assert len({sample[s] for s in slots[start : start + 64] if s != total}) == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda lengths: sum(lengths) > 0), st.integers(1, 5))
def test_the_convolution_agrees_with_its_definition(lengths, kernel):
    bounds = bounds_of(lengths)
    x = torch.randn(sum(lengths), 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 1, kernel, dtype=torch.float64, requires_grad=True)
    wanted = torch.cat([convolved(x[a:b], weight) for a, b in itertools.pairwise(bounds)])
    upstream = torch.randn_like(wanted)
    wanted_gradients = gradients(wanted, [x, weight], upstream)
    found = short_conv.causal_conv(x.unsqueeze(0), weight, bounds)[0]
    compare([found, *gradients(found, [x, weight], upstream)], [wanted, *wanted_gradients], 1e-12)


def test_the_convolution_of_a_padded_batch():
    x, weight = torch.randn(3, 9, 4, dtype=torch.float64), torch.randn(4, 1, 4, dtype=torch.float64)
    wanted = torch.stack([convolved(row, weight) for row in x])
    compare([short_conv.causal_conv(x, weight)], [wanted], 1e-12)


class Calls:
    """A package of kernels that computes by the recurrence and keeps what it was called with."""

    def __init__(self, normalizes: bool):
        self.normalizes = normalizes
        self.arguments: dict = {}

    def __call__(self, q, k, v, g, beta, scale=None, use_qk_l2norm_in_kernel=False, cu_seqlens=None):
        self.arguments = {"q": q, "k": k, "v": v, "cu_seqlens": cu_seqlens}
        assert use_qk_l2norm_in_kernel == self.normalizes
        if not self.normalizes:
            assert torch.allclose(k.float().norm(dim=-1), torch.ones(k.shape[:-1]), atol=1e-2)
        samples = range(len(q)) if cu_seqlens is None else itertools.pairwise(cu_seqlens.tolist())
        row = (lambda x, i: x[i]) if cu_seqlens is None else (lambda x, ab: x[0, ab[0] : ab[1]])
        pieces = [recurrent(*(row(x, i) for x in (q, k, v, g, beta))) for i in samples]
        return (torch.stack(pieces) if cu_seqlens is None else torch.cat(pieces).unsqueeze(0)), None


@pytest.fixture
def package(monkeypatch):
    """Puts a module with a `chunk_gated_delta_rule` where a package of kernels would be."""

    def put(name: str, function) -> None:
        delta_rule._kernel.cache_clear()
        module = delta_rule.PACKAGES[name][0]
        for parent in itertools.accumulate(module.split("."), lambda a, b: f"{a}.{b}"):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        if function is not None:
            sys.modules[module].chunk_gated_delta_rule = function

    yield put
    delta_rule._kernel.cache_clear()


@pytest.mark.parametrize("kernel", ["fla", "flashqla"])
@pytest.mark.parametrize("bounds", [None, (0, 5, 12)])
def test_other_kernels_are_called_as_they_want_to_be(package, kernel, bounds):
    called = Calls(normalizes=kernel == "fla")
    package(kernel, called)
    assert delta_rule.choose_kernel(kernel, torch.device("cuda"), torch.bfloat16) == kernel
    inputs = [x.unsqueeze(0) for x in rule_inputs(12)]
    found = delta_rule.gated_delta_rule(*inputs, bounds, kernel)
    compare([found], [delta_rule.gated_delta_rule(*inputs, bounds)], 1e-5)
    assert called.arguments["k"].shape[2] == (4 if kernel == "fla" else 2)
    if bounds is not None:
        cu_seqlens = called.arguments["cu_seqlens"]
        assert cu_seqlens.dtype == (torch.long if kernel == "fla" else torch.int32)
        assert tuple(cu_seqlens.tolist()) == bounds


@pytest.mark.parametrize("kernel", ["fla", "flashqla"])
def test_a_kernel_that_is_not_there_is_named(package, kernel):
    package(kernel, None)
    with pytest.raises(
        RunFailed, match=f"model.gdn_backend {kernel} needs .*pip install {delta_rule.PACKAGES[kernel][1]}"
    ):
        delta_rule.choose_kernel(kernel, torch.device("cuda"), torch.bfloat16)


def test_a_kernel_with_heads_first_is_refused(package):
    package("fla", lambda q, k, v, g, beta, head_first=True: (v, None))
    with pytest.raises(RunFailed, match="heads before tokens"):
        delta_rule.choose_kernel("fla", torch.device("cuda"), torch.bfloat16)


def test_auto_takes_fla_for_bfloat16_on_cuda_where_it_is_installed(package, monkeypatch):
    installed: set[str] = set()
    monkeypatch.setattr(delta_rule.importlib.util, "find_spec", lambda name: name if name in installed else None)
    package("fla", Calls(normalizes=True))
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert delta_rule.choose_kernel("auto", cuda, torch.bfloat16) == "torch"
    installed.add("fla")
    assert delta_rule.choose_kernel("auto", cuda, torch.bfloat16) == "fla"
    assert delta_rule.choose_kernel("auto", cuda, torch.float32) == "torch"
    assert delta_rule.choose_kernel("auto", cpu, torch.bfloat16) == "torch"


@pytest.mark.parametrize("bounds", [None, (0, 3, 3, 11)])
def test_the_convolution_kernel_is_told_the_samples(bounds):
    def kernel(x, weight, seq_idx=None, activation=None):
        assert activation == "silu"
        assert x.stride(1) == 1  # channels innermost
        if seq_idx is None:
            return torch.stack([convolved(row.T, weight.unsqueeze(1)).T for row in x])
        assert seq_idx.dtype == torch.int32
        assert seq_idx.is_contiguous()
        row, samples = x[0].T, seq_idx[0]
        pieces = [convolved(row[samples == i], weight.unsqueeze(1)) for i in range(int(samples.max()) + 1)]
        return torch.cat(pieces).T.unsqueeze(0)

    x, weight = torch.randn(1, 11, 8), torch.randn(8, 1, 4)
    found = short_conv._by_kernel(kernel, x[:, :, :], weight, bounds)
    compare([found], [short_conv.causal_conv(x, weight, bounds)], 1e-6)
