"""Whole updates: what arrives is exact, what is harmed or does not fit is refused, and nothing is half applied."""

from __future__ import annotations

import json
import pickle
import random
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.errors import RunFailed
from rlrun.weight_sync.delta import (
    BadFormat,
    Corrupt,
    DeltaError,
    Frame,
    MixedUpdates,
    Truncated,
    Update,
    WrongBase,
    WrongContent,
    WrongTensors,
    encode_all,
    write_update,
)
from rlrun.weight_sync.delta.codec import integers
from rlrun.weight_sync.delta.stream import CRC_END, PREFIX

Weights = dict[str, torch.Tensor]
SEEDS = st.integers(0, 2**32 - 1)


def weights(seed: int, size: int = 400) -> Weights:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    return {
        "embed": normal(size // 20, 20).to(torch.bfloat16),
        "norm": normal(size // 20),
        "scale": normal(3, 5).to(torch.float64),
        "experts.packed": torch.from_numpy(rng.integers(0, 256, (7, 9), dtype=np.uint8)),
        "bias": normal(1)[0],
        "empty": normal(0, 4),
    }


def trained(old: Weights, seed: int, density: float = 0.05) -> Weights:
    rng = np.random.default_rng(seed)
    new = {name: tensor.clone() for name, tensor in old.items()}
    for tensor in new.values():
        integers(tensor)[torch.from_numpy(rng.random(tensor.numel()) < density)] ^= 1
    return new


def frames_of(
    old: Weights | None, new: Weights, base, version: int, bucket_bytes: int = 64, low_bits=False, pack=0, **options
) -> list[Frame]:
    """Each tensor by itself, unless `pack` lets so many elements go together."""
    tensors = ((name, None if old is None else old[name], tensor) for name, tensor in new.items())
    return list(write_update(encode_all(tensors, low_bits, pack, 256), base, version, bucket_bytes, **options))


def same(a: Weights, b: Weights) -> bool:
    return all(torch.equal(integers(a[name]), integers(b[name])) for name in a)


def copy(tensors: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in tensors.items()}


OLD = weights(0)
NEW = trained(OLD, 1, 0.2)


def assert_refused(
    kind: type[DeltaError], frames, held: Weights, held_version: int | None = 3, match: str = ""
) -> None:
    before = copy(held)
    with pytest.raises(kind, match=match):
        Update.read(frames).apply(held, held_version)
    assert same(held, before)


# --- what fits --------------------------------------------------------------------------------------------------------


@given(
    seed=SEEDS,
    density=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    bucket_bytes=st.sampled_from([1, 100, 1 << 20]),
    as_bytes=st.booleans(),
    low_bits=st.booleans(),
    pack=st.sampled_from([0, 30, 1 << 24]),
)
def test_engine_and_trainer_are_equal_bit_for_bit_in_any_order_any_number_of_times(
    seed, density, bucket_bytes, as_bytes, low_bits, pack
):
    old = weights(seed)
    new = trained(old, seed + 1, density)
    frames = frames_of(old, new, 3, 4, bucket_bytes, low_bits, pack)
    shuffled = random.Random(seed).sample(frames, len(frames))
    update = Update.read([frame.to_bytes() if as_bytes else frame for frame in shuffled])
    held, version = copy(old), 3
    for _ in range(2):
        version = update.apply(held, version)
        assert version == 4
        assert same(held, new)
    assert update.changed == sum(int((integers(old[n]) != integers(new[n])).sum()) for n in old)


def test_a_writable_buffer_is_used_in_place_and_another_copied():
    (frame,) = frames_of(OLD, NEW, 3, 4, 1 << 20)
    data, fixed = bytearray(frame.to_bytes()), frame.to_bytes()
    in_place, copied = Frame.split(data), Frame.split(fixed)
    for split in (in_place, copied):
        assert torch.equal(split.body, frame.body)
        split.body[-1] ^= 1
    assert data[-1] != fixed[-1]
    assert fixed == frame.to_bytes()


def test_names_may_come_in_any_order():
    backwards = dict(reversed(NEW.items()))
    held = dict(sorted(copy(OLD).items()))
    Update.read(frames_of(OLD, backwards, 3, 4)).apply(held, 3)
    assert same(held, NEW)


@given(bucket_bytes=st.integers(1, 2000))
def test_bodies_are_bounded_and_the_last_frame_is_marked(bucket_bytes):
    frames = frames_of(OLD, NEW, 3, 4, bucket_bytes)
    heads = [json.loads(frame.head[PREFIX.size :]) for frame in frames]
    for frame, head in zip(frames, heads, strict=True):
        assert frame.body.numel() <= bucket_bytes or len(head["records"]) == 1
        assert len(frame.head) % 64 == 0
    assert [head["last"] for head in heads] == [False] * (len(frames) - 1) + [True]
    assert sum(len(head["records"]) for head in heads) == len(NEW)


def test_frames_are_made_one_at_a_time():
    drawn = []

    def source():
        for name, tensor in NEW.items():
            drawn.append(name)
            yield name, None, tensor

    frames = write_update(encode_all(source(), pack_elements=0), None, 4, 1)
    next(frames)
    assert drawn == list(NEW)[:2]


def test_without_a_change_the_version_still_moves():
    frames = frames_of(OLD, OLD, 3, 4)
    assert [frame.body.numel() for frame in frames] == [0]
    update, held = Update.read(frames), copy(OLD)
    assert (update.changed, update.nbytes, update.apply(held, 3)) == (0, 0, 4)
    assert same(held, OLD)


def test_a_full_push_is_for_any_version():
    update = Update.read(frames_of(None, NEW, None, 4))
    for held_version in (None, 0, 3, 4):
        held = weights(99)
        assert update.fit(held_version) == "apply"
        assert update.apply(held, held_version) == 4
        assert same(held, NEW)


def test_a_late_engine_learns_that_it_needs_a_full_push():
    update = Update.read(frames_of(OLD, NEW, 3, 4))
    assert [update.fit(version) for version in (None, 2, 3, 4, 5)] == [
        "full_push",
        "full_push",
        "apply",
        "held",
        "full_push",
    ]


@pytest.mark.parametrize("low_bits", [False, True])
def test_an_update_cut_short_while_writing_can_be_applied_again(low_bits):
    held = copy(OLD)
    held["embed"].copy_(NEW["embed"])  # one tensor is done
    integers(held["norm"])[:7] = integers(NEW["norm"])[:7]  # another half
    Update.read(frames_of(OLD, NEW, 3, 4, low_bits=low_bits)).apply(held, 3)
    assert same(held, NEW)


def test_views_of_a_fused_parameter_are_written():
    fused = torch.cat([OLD["embed"], OLD["embed"]])
    held = {**copy(OLD), "embed": fused[20:]}
    Update.read(frames_of(OLD, NEW, 3, 4)).apply(held, 3)
    assert torch.equal(fused[20:], NEW["embed"])
    assert torch.equal(fused[:20], OLD["embed"])


# --- what is harmed ---------------------------------------------------------------------------------------------------


def test_every_change_of_a_single_bit_is_detected():
    old = {"w": torch.arange(40, dtype=torch.int16), "v": torch.zeros(3)}
    new = {"w": old["w"].clone(), "v": torch.ones(3)}
    new["w"][[3, 17, 30]] += 1
    (frame,) = frames_of(old, new, 3, 4, 1 << 20)
    data = bytearray(frame.to_bytes())
    for i in range(len(data)):
        for bit in range(8):
            data[i] ^= 1 << bit
            with pytest.raises((BadFormat, Truncated, Corrupt)):
                Update.read([data])
            data[i] ^= 1 << bit
    assert Update.read([data]).version == 4


@given(at=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255), frame=st.integers(0, 3))
def test_a_changed_byte_anywhere_is_detected(at, value, frame):
    frames = [f.to_bytes() for f in frames_of(OLD, NEW, 3, 4, 1)]
    data = bytearray(frames[frame])
    data[int(at * len(data))] ^= value
    assert_refused(DeltaError, [*frames[:frame], data, *frames[frame + 1 :]], copy(OLD))


@given(keep=st.floats(0, 1, exclude_max=True), frame=st.integers(0, 3))
def test_a_cut_frame_is_detected(keep, frame):
    frames = [f.to_bytes() for f in frames_of(OLD, NEW, 3, 4, 1)]
    frames[frame] = frames[frame][: int(keep * len(frames[frame]))]
    assert_refused(Truncated, frames, copy(OLD))


def test_bytes_behind_the_end_are_refused():
    assert_refused(Truncated, [frame.to_bytes() + b"\0" for frame in frames_of(OLD, NEW, 3, 4)], copy(OLD))


@pytest.mark.parametrize(
    ("without", "message"), [([0], "missing: 0"), ([1, 2], "missing: 1, 2"), ([-1], "last frame is missing")]
)
def test_missing_frames_are_named(without, message):
    frames = frames_of(OLD, NEW, 3, 4, 1)
    left = [f for i, f in enumerate(frames) if i not in [w % len(frames) for w in without]]
    assert len(left) == len(frames) - len(without) > 0
    assert_refused(Truncated, left, copy(OLD), match=message)
    assert_refused(Truncated, [], copy(OLD), match="no frames")


def test_frames_of_two_updates_do_not_mix():
    frames = frames_of(OLD, NEW, 3, 4, 1)
    again = frames_of(OLD, NEW, 3, 4, 1)  # the same versions: an update that was rolled back and made anew
    assert_refused(MixedUpdates, [*frames[:-1], again[-1]], copy(OLD), match="is of update")
    assert_refused(MixedUpdates, [*frames, frames[0]], copy(OLD), match=r"frame 0 of version 4: was given twice")
    other = frames_of(OLD, NEW, 3, 5, 1, update_id="x")
    named = frames_of(OLD, NEW, 3, 4, 1, update_id="x")
    assert_refused(MixedUpdates, [*named[:-1], other[-1]], copy(OLD), match="of version 5, another of version 4")


def test_a_tensor_twice_is_refused():
    twice = [("norm", None, NEW["norm"])] * 2
    for bucket_bytes, pack in ((1, 0), (1000, 0), (1000, 1000)):
        with pytest.raises(Corrupt, match="has norm, which another place has too"):
            Update.read(write_update(encode_all(twice, pack_elements=pack), None, 1, bucket_bytes))


def forged(frame: Frame, change) -> Frame:
    """The frame with another head, its checksum right: only a faulty sender makes such."""
    fields = json.loads(frame.head[PREFIX.size :])
    text = json.dumps(change(fields) or fields).encode()
    covered = PREFIX.pack(bytes(8), 0, 1, len(text))[CRC_END:] + text
    return Frame(frame.head[:8] + struct.pack("<I", zlib.crc32(covered)) + covered, frame.body)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda h: h.pop("base") and None, BadFormat, "lacks base"),
        (lambda h: [1], BadFormat, "lacks base"),
        (lambda h: 7, BadFormat, "no JSON object"),
        (lambda h: h["records"][0].__setitem__(1, "int3"), BadFormat, "int3"),
        (lambda h: h["records"][0][0][0].__setitem__(1, [5, 5]), BadFormat, "do not add up"),
        (lambda h: h["records"][0][0][0].__setitem__(1, "wide"), BadFormat, "not understood"),
        (lambda h: h["records"][0].pop() and None, BadFormat, "not understood"),
        (lambda h: h["records"][0][2][0].__setitem__(1, 10**6), BadFormat, "no segment"),
        (lambda h: h["records"][0][2][0].__setitem__(2, -8), BadFormat, "no segment"),
        (lambda h: h["records"][0][2][0].__setitem__(4, [1, 2]), BadFormat, "not understood"),
        (lambda h: h["records"][0][2][0].__setitem__(1, 200), Truncated, "its head announces"),
        (lambda h: h["records"][0][2][0].__setitem__(3, 1), Corrupt, "tensor embed: "),
        (lambda h: h.__setitem__("index", 1), Truncated, "missing: 0"),
        (lambda h: h.__setitem__("tensors", 9), Truncated, "6 tensors, its last frame counts 9"),
    ],
)
def test_a_head_that_contradicts_itself_is_refused(change, kind, message):
    (frame,) = frames_of(OLD, NEW, 3, 4, 1 << 20)
    assert_refused(kind, [forged(frame, change)], copy(OLD), match=message)


def test_frames_behind_the_last_are_refused():
    frames = frames_of(OLD, NEW, 3, 4, 1)
    assert len(frames) > 2
    early = forged(frames[1], lambda head: {**head, "last": True})
    assert_refused(MixedUpdates, [frames[0], early, *frames[2:]], copy(OLD), match="says that it is the last")


def test_other_bytes_and_other_formats_are_told_apart():
    (frame,) = frames_of(OLD, NEW, 3, 4, 1 << 20)
    assert_refused(BadFormat, [b"\x93NUMPY" + bytes(100)], copy(OLD), match="no frame of a weight update")
    data = bytearray(frame.to_bytes())
    data[CRC_END] = 2
    assert_refused(BadFormat, [data], copy(OLD), match="format 2, known is 1")


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held_version", [None, 2, 5])
def test_another_base_version_is_refused(held_version):
    assert_refused(WrongBase, frames_of(OLD, NEW, 3, 4), copy(OLD), held_version, f"version {held_version} is held")


def test_every_difference_of_names_shapes_and_dtypes_is_listed():
    held = copy(OLD)
    del held["scale"]
    held["lm_head"] = torch.zeros(2)
    held["norm"] = held["norm"][:-1]
    held["embed"] = held["embed"].to(torch.float16)
    with pytest.raises(WrongTensors) as error:
        Update.read(frames_of(OLD, NEW, 3, 4)).apply(held, 3)
    assert "lm_head is not in the update" in error.value.summary
    assert "scale is not held" in error.value.summary
    assert "norm is float32 [20] in the update, float32 [19] here" in error.value.summary
    assert "embed is bfloat16 [20, 20] in the update, float16 [20, 20] here" in error.value.summary


@given(name=st.sampled_from([n for n in OLD if n != "empty"]), at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_base_that_differs_in_one_bit_is_refused_or_made_right(name, at, bit):
    """Where the update writes, what was there before does not matter."""
    held = copy(OLD)
    integers(held[name]).view(torch.uint8)[at % (held[name].numel() * held[name].element_size())] ^= 1 << bit
    before = copy(held)
    update = Update.read(frames_of(OLD, NEW, 3, 4))
    differs = integers(held[name]) != integers(OLD[name])
    if bool((differs & (integers(OLD[name]) == integers(NEW[name]))).any()):
        with pytest.raises(WrongContent, match=f"of 6 tensors .* version 4: {name}"):
            update.apply(held, 3)
        assert same(held, before)
    else:
        update.apply(held, 3)
        assert same(held, NEW)


def test_low_bits_over_other_high_bits_are_refused():
    """Here, and only here, what was there before matters where the update writes."""
    name, frames = "embed", frames_of(OLD, NEW, 3, 4, low_bits=True)
    changed = int(torch.nonzero(integers(OLD[name]) != integers(NEW[name]))[0])
    held = copy(OLD)
    integers(held[name])[changed] ^= 1 << 12
    assert_refused(WrongContent, frames, held, match="of 6 tensors .* version 4: embed")


def test_a_pack_is_one_delta_of_many_tensors():
    """Their content is proven together, so that all of a pack are named."""
    (frame,) = frames_of(OLD, NEW, 3, 4, 1 << 20, pack=1 << 20)
    update = Update.read([frame])
    assert sorted(sorted(part.name for part in record.parts) for record in update.records) == [
        ["bias", "empty", "norm"],
        ["embed"],
        ["experts.packed"],
        ["scale"],
    ]
    held = copy(OLD)
    unchanged = int(torch.nonzero(integers(OLD["norm"]) == integers(NEW["norm"]))[0])
    held["norm"][unchanged] += 1
    assert_refused(WrongContent, [frame], held, match="version 4: norm, bias, empty")


@given(low_bits=st.booleans(), full=st.booleans(), seed=SEEDS)
def test_changes_are_told_for_each_tensor_of_a_pack(low_bits, full, seed):
    """What an engine with slices of the tensors does, here with whole ones."""
    rng = np.random.default_rng(seed)
    old = {f"w{i}": torch.from_numpy(rng.standard_normal(rng.integers(0, 400)).astype(np.float32)) for i in range(9)}
    new = trained(old, seed, 0.3)
    update = Update.read(frames_of(None if full else old, new, None if full else 3, 4, 1, low_bits, pack=1000))
    held = copy(old)
    for record in update.records:
        for name, changes in record.changes():
            flat = integers(held[name])
            where = changes.positions
            if where is None:
                where = torch.arange(changes.start, changes.start + len(changes.values))
            flat[where] = changes.over(flat[where])
    assert same(held, new)


def test_packs_are_bounded_and_of_one_dtype():
    rng = np.random.default_rng(0)
    dtypes = [torch.bfloat16, torch.float32]
    named = [(f"w{i}", None, torch.zeros(int(rng.integers(0, 60)), dtype=dtypes[i % 2])) for i in range(100)]
    packs = list(encode_all(named, pack_elements=50))
    assert sorted(part.name for pack in packs for part in pack.parts) == sorted(name for name, _, _ in named)
    for pack in packs:
        assert len(pack.parts) == 1 or sum(part.shape[0] for part in pack.parts) <= 50
        assert {named[int(part.name[1:])][2].dtype for part in pack.parts} == {getattr(torch, pack.delta.dtype)}
    assert len(packs) < 80


def test_content_can_be_taken_on_trust():
    held = copy(OLD)
    held["norm"][0] = 7.0
    update = Update.read(frames_of(OLD, {**NEW, "norm": OLD["norm"]}, 3, 4))
    with pytest.raises(WrongContent):
        update.check(held, 3)
    assert update.apply(held, 3, content=False) == 4
    assert held["norm"][0] == 7.0


def test_errors_are_failures_of_a_run_and_cross_processes():
    with pytest.raises(RunFailed) as error:
        Update.read(frames_of(OLD, NEW, 3, 4)).check(OLD, 9)
    copied = pickle.loads(pickle.dumps(error.value))
    assert isinstance(copied, WrongBase)
    assert (copied.part, copied.summary, copied.hint) == (error.value.part, error.value.summary, error.value.hint)
    assert "full push" in copied.hint


def test_long_lists_are_cut():
    held = {f"w{i}": torch.zeros(1) for i in range(20)}
    with pytest.raises(WrongTensors, match="w4 is not in the update; and 21 more"):
        Update.read(frames_of(OLD, NEW, 3, 4)).check(held, 3)
