"""Weights by their changes, against a server that applies the files as an engine does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.delta import Snapshot
from rlrun.weight_sync.delta.errors import BadFormat, Corrupt, DeltaError, Truncated, WrongBase
from rlrun.weight_sync.delta.file import read_frames, write_frames
from rlrun.weight_sync.delta.mirror import Mirror, open_tensors
from rlrun.weight_sync.files import Files
from rlrun.weight_sync.senders import make_sender


def make_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(40, 16, generator=generator).to(torch.bfloat16),
        "norm": torch.ones(16, dtype=torch.bfloat16),
        "gate.bias": torch.randn(5, generator=generator),
        "head": torch.randn(16, 40, generator=generator).to(torch.bfloat16).T,  # not contiguous
    }


def changed(weights: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    """The same weights with a few elements of these moved by a unit."""
    result = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()}
    for name in names:
        result[name].view(-1)[::7] += 0.25
    return result


@pytest.fixture
def connect(tmp_path):
    opened = []

    def make(engines, bucket_bytes=1 << 20):
        files = Files(str(tmp_path / "run"), lambda named, target: pytest.fail("no checkpoint is written"))
        plan = SyncPlan("delta", "delta", bucket_bytes, "version", 0)
        opened.append(make_sender(plan, [e.address(i, 1 + i) for i, e in enumerate(engines)], "cpu", 10, files))
        opened[-1].connect()
        return opened[-1]

    yield make
    for sender in opened:
        sender.close()


def send(sender, weights, version):
    return sender.send(iter(weights.items()), version, list(weights))


def assert_holds(engine, weights, version):
    assert engine.version == str(version)
    assert sorted(engine.weights) == sorted(weights)
    for name, tensor in weights.items():
        assert engine.weights[name].dtype == tensor.dtype
        assert torch.equal(engine.weights[name], tensor)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_the_first_update_is_full_and_later_ones_are_small(fake_engine, connect, tmp_path, bucket_bytes):
    engines = [fake_engine(), fake_engine()]
    sender = connect(engines, bucket_bytes)
    weights = make_weights()
    first = send(sender, weights, 1)
    assert (first["full_updates"], first["tensors"]) == (2, 4)
    assert first["bytes"] > sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    weights = changed(weights, "embed", "gate.bias")
    second = send(sender, weights, 2)
    assert second["full_updates"] == 0
    assert second["bytes"] < first["bytes"] / 2
    for engine in engines:
        assert_holds(engine, weights, 2)
        assert engine.updates[-1]["flush_cache"] is True
    assert [len(e.updates[-1]["serialized_named_tensors"]) for e in engines] == [1, 2]
    assert os.listdir(tmp_path / "run") == []


def test_no_change_at_all_is_a_version_too(fake_engine, connect):
    engine = fake_engine()
    sender, weights = connect([engine]), make_weights()
    send(sender, weights, 1)
    assert send(sender, weights, 2)["full_updates"] == 0
    assert_holds(engine, weights, 2)
    send(sender, changed(weights, "norm"), 3)
    assert_holds(engine, changed(weights, "norm"), 3)


def test_an_engine_started_anew_gets_all_weights_and_the_others_changes(fake_engine, connect, tmp_path):
    engines = [fake_engine(), fake_engine()]
    sender, weights = connect(engines), make_weights()
    send(sender, weights, 1)
    engines[1].mirror, engines[1].weights = Mirror(str(tmp_path)), {}
    weights = changed(weights, "head")
    assert send(sender, weights, 2)["full_updates"] == 1
    assert [len(engine.updates) for engine in engines] == [2, 3]
    weights = changed(weights, "norm")
    assert send(sender, weights, 3)["full_updates"] == 0
    for engine in engines:
        assert_holds(engine, weights, 3)


def flip(path: str, at: int = -20) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)


def test_a_damaged_file_is_refused_and_followed_by_all_weights(fake_engine, connect):
    engine = fake_engine()
    sender, weights = connect([engine]), make_weights()
    send(sender, weights, 1)
    engine.harm = lambda path: flip(path) if "changes" in path else None
    weights = changed(weights, "embed")
    assert send(sender, weights, 2)["full_updates"] == 1
    assert_holds(engine, weights, 2)


def test_an_engine_that_refuses_all_weights_ends_the_run(fake_engine, connect):
    engine = fake_engine()
    sender, weights = connect([engine]), make_weights()
    send(sender, weights, 1)
    engine.harm = flip
    with pytest.raises(RunFailed, match=r"engine 0: /update_weights_from_tensor failed.*checksum"):
        send(sender, changed(weights, "embed"), 2)
    assert_holds(engine, weights, 1)


@pytest.mark.parametrize("first", [True, False])
def test_wrong_names_reach_no_engine(fake_engine, connect, tmp_path, first):
    engine = fake_engine()
    sender, weights = connect([engine]), make_weights()
    version = 1
    if not first:
        send(sender, weights, 1)
        version = 2
    sent = len(engine.updates)
    with pytest.raises(RunFailed, match="did not send head"):
        sender.send(list(weights.items())[:-1], version, list(weights))
    assert len(engine.updates) == sent
    assert os.listdir(tmp_path / "run") == []
    send(sender, changed(weights, "head"), version)  # and the next one is right again
    assert_holds(engine, changed(weights, "head"), version)


def test_a_disk_that_is_full_is_named(fake_engine, connect, tmp_path):
    sender = connect([fake_engine()])
    (tmp_path / "run").rmdir()
    with pytest.raises(RunFailed, match=r"writing .*full_000001.rlrun failed: .*weight_sync\.dir"):
        send(sender, make_weights(), 1)
    (tmp_path / "run").mkdir()


# -- the file and the engine's copy


def updates(folder: Path) -> tuple[Mirror, dict[str, torch.Tensor], str]:
    """A copy at version 1, and the file that leads to these weights as version 2."""
    snapshot, weights = Snapshot(low_bits=True), make_weights()
    snapshot.take(weights.items(), 1)
    full, delta = str(folder / "full"), str(folder / "delta")
    write_frames(full, snapshot.full(1 << 20))
    mirror = Mirror(str(folder))
    assert mirror.apply(full) == set(weights)
    weights = changed(weights, "embed", "gate.bias")
    write_frames(delta, snapshot.update(weights.items(), 2, 1 << 20))
    return mirror, weights, delta


def test_a_copy_says_what_changed_and_other_processes_see_it(tmp_path):
    mirror, weights, delta = updates(tmp_path)
    other = open_tensors(mirror.path, mirror.places)
    assert mirror.apply(delta) == {"embed", "gate.bias"}
    assert mirror.version == 2
    for name, tensor in weights.items():
        assert torch.equal(mirror.tensors[name], tensor)
        assert torch.equal(other[name], tensor)


def test_a_copy_without_a_name_stays_as_long_as_it_is_open(tmp_path):
    mirror, weights, delta = updates(tmp_path)
    path, other = Path(mirror.path), open_tensors(mirror.path, mirror.places)
    mirror.unlink()
    mirror.unlink()
    assert not path.exists()
    mirror.apply(delta)
    for name, tensor in weights.items():
        assert torch.equal(other[name], tensor)


def test_changes_need_their_base(tmp_path):
    _, _, delta = updates(tmp_path)
    empty = Mirror(str(tmp_path))
    with pytest.raises(WrongBase, match="version None is held; this update leads from 1 to 2"):
        empty.apply(delta)
    assert empty.version is None


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    mirror, _, delta = updates(folder)
    return mirror, Path(delta).read_bytes(), folder


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_damaged_byte_is_noticed_and_nothing_is_written(held, where, bit):
    mirror, whole, folder = held
    data = bytearray(whole)
    data[int(where * len(data))] ^= 1 << bit
    (folder / "damaged").write_bytes(data)
    with pytest.raises(DeltaError):
        mirror.apply(str(folder / "damaged"))
    assert mirror.version == 1
    for name, tensor in make_weights().items():
        assert torch.equal(mirror.tensors[name], tensor)


@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_file_that_was_cut_is_noticed(held, cut):
    mirror, whole, folder = held
    (folder / "cut").write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises((Truncated, BadFormat, Corrupt)):
        mirror.apply(str(folder / "cut"))
    assert mirror.version == 1


def test_frames_come_back_as_they_were(tmp_path):
    snapshot = Snapshot()
    snapshot.take(make_weights().items(), 1)
    frames = list(snapshot.full(100))
    assert len(frames) > 1
    size = write_frames(str(tmp_path / "file"), frames)
    assert size == os.path.getsize(tmp_path / "file")
    assert [frame.to_bytes() for frame in read_frames(str(tmp_path / "file"))] == [f.to_bytes() for f in frames]


def test_a_file_whose_frames_fail_is_not_there(tmp_path):
    def frames():
        raise ValueError("lost")
        yield

    with pytest.raises(ValueError, match="lost"):
        write_frames(str(tmp_path / "file"), frames())
    assert os.listdir(tmp_path) == []
