"""Changes of one tensor: exact for every dtype and density, and nearly as small as they can be."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from rlrun.weight_sync.delta import apply, decode, encode
from rlrun.weight_sync.delta.codec import DTYPES, Delta, Segment, changed_positions, integers
from rlrun.weight_sync.delta.rice import (
    ESCAPE,
    GROUP,
    best_k,
    decode_gaps,
    encode_gaps,
    pack,
    pack_bits,
    unpack,
    unpack_bits,
)
from rlrun.weight_sync.delta.values import nearest

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.one_of(
    st.lists(st.integers(0, 9), max_size=4),
    st.integers(0, 3000).map(lambda n: [n]),
    st.tuples(st.integers(1, 40), st.integers(1, 40)).map(list),
)
DENSITIES = st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.4, 0.9, 1.0])


def random_bits(shape, dtype: torch.dtype, rng: np.random.Generator) -> torch.Tensor:
    """Any bit pattern, NaNs with payloads among them; for bool the two that exist."""
    count, size = math.prod(shape), dtype.itemsize
    raw = rng.integers(0, 2 if dtype == torch.bool else 256, count * size, dtype=np.uint8)
    tensor = torch.empty(shape, dtype=dtype)
    tensor.untyped_storage().copy_(torch.from_numpy(raw).untyped_storage())
    return tensor


def changed_copy(old: torch.Tensor, density: float, rng: np.random.Generator) -> torch.Tensor:
    new = old.clone()
    which = torch.from_numpy(rng.random(old.numel()) < density)
    bit = 0 if old.dtype == torch.bool else int(rng.integers(8 * old.element_size() - 1))
    integers(new)[which] ^= 1 << bit
    return new


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(integers(a), integers(b))


@given(
    shape=SHAPES,
    dtype=st.sampled_from(sorted(DTYPES)),
    density=DENSITIES,
    seed=SEEDS,
    segment=st.sampled_from([8, 64, 1 << 24]),
    low_bits=st.booleans(),
)
def test_old_plus_delta_is_new_bit_for_bit(shape, dtype, density, seed, segment, low_bits):
    rng = np.random.default_rng(seed)
    old = random_bits(shape, DTYPES[dtype], rng)
    new = changed_copy(old, density, rng)
    delta = encode(old, new, segment, low_bits)
    assert delta.nbytes == delta.payload.numel()
    assert delta.nbytes <= encode(old, new, segment).nbytes
    assert delta.changed == int((integers(old) != integers(new)).sum())
    assert delta.nbytes <= old.numel() * old.element_size() + 8 * len(delta.segments), "larger than the tensor"
    target = old.clone()
    for _ in range(2):  # a second time changes nothing
        apply(target, delta)
        assert same_bits(target, new)


@given(shape=SHAPES, dtype=st.sampled_from(sorted(DTYPES)), seed=SEEDS)
def test_without_an_old_tensor_all_is_sent(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    new, target = (random_bits(shape, DTYPES[dtype], rng) for _ in range(2))
    apply(target, encode(None, new))
    assert same_bits(target, new)


@given(n=st.integers(1, 2000), density=DENSITIES, size=st.sampled_from([1, 2, 4, 8]), seed=SEEDS)
def test_positions_are_where_numpy_finds_differences(n, density, size, seed):
    rng = np.random.default_rng(seed)
    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    old = random_bits([n], dtype, rng)
    new = changed_copy(old, density, rng)
    expected = np.flatnonzero(old.numpy() != new.numpy())
    assert np.array_equal(changed_positions(old, new).numpy(), expected)
    found = [c.positions for c in decode(encode(old, new, 64)) if c.positions is not None]
    assert set(torch.cat(found).tolist() if found else []) <= set(expected.tolist())


@pytest.mark.parametrize("n", [1001, 1002, 1003, 1007])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_changes_behind_the_last_whole_word_are_found(n, dtype):
    old = torch.zeros(n, dtype=dtype)
    for at in {0, 500, *range(n - 8, n)}:
        for value in (1, -1):
            new = old.clone()
            new[at] = value
            assert changed_positions(old, new).tolist() == [at]


def test_a_sign_of_zero_and_the_payload_of_a_nan_are_changes():
    old = torch.tensor([0.0, math.nan, math.nan, 1.0])
    new = torch.tensor([-0.0, math.nan, math.nan, 1.0])
    new.view(torch.int32)[1] ^= 1
    delta = encode(old, new, 8)
    assert delta.changed == 2
    apply(old, delta)
    assert torch.equal(old.view(torch.int32), new.view(torch.int32))


def test_equal_tensors_have_an_empty_delta():
    delta = encode(torch.ones(100), torch.ones(100))
    assert (delta.changed, delta.nbytes, len(delta.segments)) == (0, 0, 1)


def test_targets_of_any_strides_are_written_in_place():
    old = torch.arange(60.0).reshape(6, 10)
    new = old.clone()
    new[1, 2] = new[5, 9] = -1.0
    fused = torch.zeros(20, 10)
    rows = fused[7:13]
    rows.copy_(old)
    transposed = old.T.contiguous().T
    for target in (rows, transposed, torch.nn.Parameter(old.clone())):
        apply(target, encode(old, new, 16))
        assert torch.equal(target, new)
    assert torch.equal(fused[7:13], new)
    assert not fused[:7].any()
    assert not transposed.is_contiguous()


def test_a_source_of_any_strides_counts_in_row_major_order():
    old = torch.arange(12.0).reshape(3, 4)
    new = old.clone()
    new[2, 1] = 100.0
    (changes,) = decode(encode(old.T.contiguous().T, new.T.contiguous().T))
    assert changes.positions.tolist() == [9]


def test_the_dense_form_is_taken_exactly_when_it_is_smaller():
    old = torch.zeros(4096, dtype=torch.int16)
    half, nearly_all = old.clone(), old.clone()
    half[::2] = 1
    nearly_all[: 4096 - 64] = 1
    assert encode(old, half).segments[0].position_bytes is not None
    assert encode(old, half).nbytes < 4096 * 2
    (segment,) = encode(old, nearly_all).segments
    assert (segment.position_bytes, segment.changed) == (None, 4032)


def test_segments_choose_for_themselves():
    old = torch.zeros(1024, dtype=torch.bfloat16)
    new = old.clone()
    new[:512] = 1
    new[700] = 1
    kinds = [(s.changed, s.position_bytes is None) for s in encode(old, new, 256).segments]
    assert kinds == [(256, True), (256, True), (1, False), (0, False)]


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("density", "percent_of_positions"), [(0.001, 1.5), (0.01, 1.5), (0.03, 2.5), (0.1, 2.5)])
def test_positions_are_within_a_few_per_cent_of_their_entropy(density, percent_of_positions):
    n = 4 << 20
    which = torch.from_numpy(np.random.default_rng(1).random(n) < density)
    old = torch.zeros(n, dtype=torch.bfloat16)
    delta = encode(old, torch.where(which, 1.0, old).to(torch.bfloat16))
    p = delta.changed / n
    entropy = -n * (p * math.log2(p) + (1 - p) * math.log2(1 - p)) / 8
    positions = delta.nbytes - 2 * delta.changed
    assert entropy <= positions <= entropy * (1 + percent_of_positions / 100)
    assert delta.nbytes <= (entropy + 2 * delta.changed) * 1.007


def test_clustered_changes_cost_less_than_their_density_says():
    n = 1 << 20
    rng = np.random.default_rng(2)
    rows = torch.from_numpy(rng.random(n // 1024) < 0.02)[:, None]
    which = (rows & torch.from_numpy(rng.random((n // 1024, 1024)) < 0.5)).view(-1)
    old = torch.zeros(n, dtype=torch.bfloat16)
    delta = encode(old, torch.where(which, 1.0, old).to(torch.bfloat16))
    p = delta.changed / n
    entropy = -n * (p * math.log2(p) + (1 - p) * math.log2(1 - p)) / 8
    assert delta.nbytes - 2 * delta.changed < 0.3 * entropy


def bits_with(gaps: torch.Tensor, k: int) -> int:
    quotients = (gaps >> k).clamp(max=ESCAPE)
    return int(quotients.sum()) + 32 * int((quotients == ESCAPE).sum()) + k * len(gaps)


@pytest.mark.parametrize("n", [1, 100, GROUP])
def test_no_other_width_is_shorter_for_independent_changes(n):
    for seed, scale in enumerate([0, *np.geomspace(0.1, 10**6, 60)]):
        gaps = torch.from_numpy((np.random.default_rng(seed).exponential(1, n) * scale).astype(np.int64))
        chosen = int(best_k(pad(gaps, (0, GROUP - n)).view(1, -1), n))
        assert bits_with(gaps, chosen) == min(bits_with(gaps, k) for k in range(24))


@given(
    seed=SEEDS,
    inside=st.sampled_from([0, 1, 5, 300]),
    between=st.sampled_from([10**4, 10**7]),
    share=st.floats(0, 0.05),
)
def test_hardly_any_other_width_is_shorter_for_clustered_ones(seed, inside, between, share):
    rng = np.random.default_rng(seed)
    scale = np.where(rng.random(GROUP) < share, between, inside)
    gaps = torch.from_numpy((rng.exponential(1, GROUP) * scale).astype(np.int64))
    chosen = int(best_k(gaps.view(1, -1), GROUP))
    assert bits_with(gaps, chosen) + GROUP <= 1.05 * min(bits_with(gaps, k) + GROUP for k in range(32))


# --- values by their low bits -----------------------------------------------------------------------------------------


def stepped(n: int, density: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 weights, and the same with some of them one unit in the last place up or down."""
    rng = np.random.default_rng(seed)
    old = torch.from_numpy(rng.standard_normal(n).astype(np.float32)).to(torch.bfloat16)
    steps = rng.choice([-1, 1], n) * (rng.random(n) < density)
    return old, (old.view(torch.int16) + torch.from_numpy(steps.astype(np.int16))).view(torch.bfloat16)


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_steps_of_one_unit_take_two_bits_and_no_exceptions(density):
    old, new = stepped(1 << 20, density, 4)
    whole, low = encode(old, new), encode(old, new, low_bits=True)
    assert (low.segments[0].low.bits, low.segments[0].low.exceptions) == (2, 0)
    assert whole.nbytes - low.nbytes == pytest.approx(14 / 8 * low.changed, abs=24)
    target = old.clone()
    apply(target, low)
    assert same_bits(target, new)


@pytest.mark.parametrize("bits", [1, 2, 3, 7])
def test_the_nearest_number_with_these_low_bits(bits):
    """All bytes held, by search; the lower of two at the same distance."""
    low, held = torch.meshgrid(torch.arange(1 << bits), torch.arange(-128, 128), indexing="ij")
    low, held = (t.reshape(-1).to(torch.int8) for t in (low, held))
    found = nearest(low, bits, held)
    for end, start, f in zip(low.tolist(), held.tolist(), found.tolist(), strict=True):
        steps = [s for s in range(-(1 << bits >> 1), 1 << bits >> 1) if (start + s - end) % (1 << bits) == 0]
        assert [(start + s + 128) % 256 - 128 for s in steps] == [f]
    assert torch.equal(nearest(low, bits, found), found)


@given(seed=SEEDS, done=st.floats(0, 1), density=st.sampled_from([0.01, 0.3, 1.0]))
def test_low_bits_over_a_part_that_is_done_already(seed, done, density):
    """Absolute as far as they go: any mixture of old and new becomes new."""
    old, new = stepped(500, density, seed)
    mixed = torch.where(torch.from_numpy(np.random.default_rng(seed).random(500) < done), new, old)
    apply(mixed, encode(old, new, 64, low_bits=True))
    assert same_bits(mixed, new)


@given(n=st.integers(1, 3000), size=st.sampled_from([1, 2, 4, 8]), share=st.sampled_from([0.01, 0.1]), seed=SEEDS)
def test_exceptions_among_small_steps_come_back(n, size, share, seed):
    rng = np.random.default_rng(seed)
    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    old = random_bits([n], dtype, rng)
    steps = torch.from_numpy(rng.choice([-2, -1, 1, 2], n)).to(dtype)
    new = torch.where(torch.from_numpy(rng.random(n) < share), random_bits([n], dtype, rng), old + steps)
    target = old.clone()
    for _ in range(2):
        apply(target, encode(old, new, low_bits=True))
        assert torch.equal(target, new)


@pytest.mark.parametrize(("step", "bits"), [(1, 2), (-1, 1), (-2, 2), (2, 3), (3, 3), (-4, 3), (4, 4)])
def test_as_many_bits_as_the_step_needs(step, bits):
    old = torch.arange(0, 4000, dtype=torch.int16)
    new = old.clone()
    new[::5] += step
    (segment,) = encode(old, new, low_bits=True).segments
    assert (segment.low.bits, segment.low.exceptions) == (bits, 0)
    new[5] += 4 * step  # one of 800
    (segment,) = encode(old, new, low_bits=True).segments
    assert (segment.low.bits, segment.low.exceptions) == (bits, 1)
    apply(old, encode(old, new, low_bits=True))
    assert torch.equal(old, new)


def test_large_changes_are_exceptions_or_whole():
    old, new = stepped(4096, 0.2, 5)
    new[::64] = -new[::64]  # the sign is the highest bit
    (segment,) = encode(old, new, low_bits=True).segments
    assert segment.low.exceptions >= 64
    rng = np.random.default_rng(6)
    anything = random_bits([4096], torch.bfloat16, rng)
    assert encode(old, anything, low_bits=True).segments[0].low is None


@given(size=st.sampled_from([1, 2, 4, 8]), n=st.integers(1, 700), moved=st.integers(1, 63), seed=SEEDS)
def test_any_width_of_changes_comes_back(size, n, moved, seed):
    rng = np.random.default_rng(seed)
    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    old = random_bits([n], dtype, rng)
    noise = torch.from_numpy(rng.integers(1, 1 << min(moved, 8 * size - 1), n)).to(dtype)
    new = old + (noise if seed % 2 else -noise)  # wraps
    delta = encode(old, new, low_bits=True)
    assert delta.nbytes <= encode(old, new).nbytes
    seen = torch.zeros(n, dtype=torch.int64)
    for changes in decode(delta):
        if changes.positions is not None:
            seen[changes.positions] += 1
            assert torch.equal(changes.over(old[changes.positions]), new[changes.positions])
    assert int(seen.max()) <= 1
    apply(old, delta)
    assert torch.equal(old, new)


@given(seed=SEEDS, changes=st.integers(1, 40))
def test_any_bytes_as_low_bits_decode_or_are_refused(seed, changes):
    old, new = stepped(3000, 0.1, 7)
    delta = encode(old, new, low_bits=True)
    rng = np.random.default_rng(seed)
    payload = delta.payload.clone()
    where = torch.from_numpy(rng.integers(0, len(payload), changes))
    payload[where] = torch.from_numpy(rng.integers(0, 256, changes, dtype=np.uint8))
    try:
        found = list(decode(Delta(delta.dtype, delta.shape, delta.segments, payload)))
    except ValueError:
        return
    positions = torch.cat([c.positions for c in found])
    assert len(set(positions.tolist())) == len(positions)
    assert int(positions.max()) < 3000


# --- the codes of positions -------------------------------------------------------------------------------------------


def plain_rice(gaps: list[int], k: int) -> tuple[str, str]:
    """Unary parts and low bits as strings, first bit first."""
    unary = "".join("0" * (g >> k) + "1" for g in gaps)
    low = "".join(format(g & ((1 << k) - 1), f"0{k}b")[::-1] if k else "" for g in gaps)
    return unary, low


def bit_string(code: torch.Tensor) -> str:
    return "".join(format(byte, "08b")[::-1] for byte in code.tolist())


def test_a_small_code_by_hand():
    gaps = [0, 4, 0, 9, 1, 2, 3, 5]  # mean 3: k = 1
    code, unary_bits = encode_gaps(torch.tensor(gaps))
    unary, low = plain_rice(gaps, 1)
    assert code[0] == 1
    assert bit_string(code[1:2]) == low
    assert bit_string(code[2:])[: len(unary)] == unary
    assert unary_bits == len(unary)
    assert set(bit_string(code[2:])[len(unary) :]) <= {"0"}


@given(data=st.data(), scale=st.sampled_from([0, 1, 200, 10**5, 10**8]), n=st.integers(1, 3 * GROUP))
def test_gaps_come_back(data, scale, n):
    rng = np.random.default_rng(data.draw(SEEDS))
    gaps = torch.from_numpy((rng.exponential(1, n).clip(max=20) * scale * rng.integers(0, 2, n)).astype(np.int64))
    code, unary_bits = encode_gaps(gaps)
    assert torch.equal(decode_gaps(code, n, unary_bits), gaps)


@given(width=st.integers(0, 31), eights=st.integers(0, 20), seed=SEEDS)
def test_packed_values_come_back_in_as_many_bits(width, eights, seed):
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.integers(0, 1 << width, 8 * eights))
    code = pack(values, width)
    assert code.numel() == eights * width
    assert torch.equal(unpack(code, 8 * eights, width), values)


@given(eights=st.integers(0, 20), seed=SEEDS)
def test_bits_are_packed_alike_on_cpu_and_gpu(eights, seed):
    bits = torch.from_numpy(np.random.default_rng(seed).integers(0, 2, 8 * eights, dtype=np.uint8))
    code = pack_bits(bits)
    assert torch.equal(code, pack(bits.to(torch.int64), 1))  # what a GPU runs
    assert torch.equal(unpack_bits(code), bits.to(torch.bool))
    assert torch.equal(unpack(code, 8 * eights, 1), bits.to(torch.int64))


# --- bytes that no encoder made ---------------------------------------------------------------------------------------


def sparse_delta() -> Delta:
    old = torch.zeros(4000, dtype=torch.bfloat16)
    new = old.clone()
    new[::7] = 1
    return encode(old, new)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((Segment(3999, 572, 320, 1000),), "segments of 3999 elements"),
        ((Segment(4000, 572, 312, 1000),), "bytes"),
        ((), "segments of 0 elements"),
    ],
)
def test_segments_that_do_not_add_up_are_refused(segments, message):
    delta = sparse_delta()
    with pytest.raises(ValueError, match=message):
        list(decode(Delta(delta.dtype, delta.shape, segments, delta.payload)))


def test_a_position_behind_the_end_is_refused():
    old = torch.zeros(4000, dtype=torch.bfloat16)
    new = old.clone()
    new[[10, 3999]] = 1
    delta = encode(old, new)
    (segment,) = delta.segments
    shorter = Delta(delta.dtype, (3999,), (dataclasses.replace(segment, elements=3999),), delta.payload)
    with pytest.raises(ValueError, match="a position beyond 3999 elements"):
        list(decode(shorter))


def test_codes_that_contradict_themselves_are_refused():
    n = 300
    gaps = torch.ones(n, dtype=torch.int64)
    gaps[7] = 10**6  # escapes
    code, unary_bits = encode_gaps(gaps)
    extra = torch.zeros(4, dtype=torch.uint8)
    wide, negative = code.clone(), code.clone()
    wide[0] = 40
    negative[-1] |= 0x80
    for bad, bits, message in (
        (code[:1], unary_bits, "cannot hold 300 positions"),
        (code, n - 1, "cannot hold 300 positions"),
        (wide, unary_bits, "width of 40 bits"),
        (code[:-1], unary_bits, "and whole escapes"),
        (torch.cat([code, extra[:1]]), unary_bits, "and whole escapes"),
        (code[:20], unary_bits, "and whole escapes"),
        (code[:-4], unary_bits, "1 gaps escape, 0 are there"),
        (torch.cat([code, extra]), unary_bits, "1 gaps escape, 2 are there"),
        (code, unary_bits + (1 if unary_bits % 8 else -1), "not at its last bit"),
        (negative, unary_bits, "negative"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_gaps(bad, n, bits)
    assert torch.equal(decode_gaps(code, n, unary_bits), gaps)


@given(seed=SEEDS, changes=st.integers(1, 40))
def test_any_bytes_decode_to_positions_inside_or_are_refused(seed, changes):
    delta = sparse_delta()
    rng = np.random.default_rng(seed)
    payload = delta.payload.clone()
    where = torch.from_numpy(rng.integers(0, delta.segments[0].position_bytes, changes))
    payload[where] = torch.from_numpy(rng.integers(0, 256, changes, dtype=np.uint8))
    try:
        (found,) = decode(Delta(delta.dtype, delta.shape, delta.segments, payload))
    except ValueError:
        return
    assert int(found.positions.min()) >= 0
    assert int(found.positions.max()) < 4000
    assert int(torch.diff(found.positions).min()) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "float64"])
@pytest.mark.parametrize("low_bits", [False, True])
def test_a_gpu_makes_the_same_bytes(dtype, density, low_bits):
    rng = np.random.default_rng(3)
    old = random_bits([1 << 20], DTYPES[dtype], rng)
    new = changed_copy(old, density, rng)
    here, there = (encode(o, n, low_bits=low_bits) for o, n in ((old, new), (old.cuda(), new.cuda())))
    assert here.segments == there.segments
    assert torch.equal(here.payload, there.payload.cpu())
    target = old.cuda()
    apply(target, here)
    assert same_bits(target.cpu(), new)
