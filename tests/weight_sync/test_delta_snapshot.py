"""The sender: what it remembers is what all engines confirmed, whatever happens in between."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.weight_sync.delta import SenderError, Snapshot, Update, WrongBase
from rlrun.weight_sync.delta.codec import integers


def weights(version: int) -> dict[str, torch.Tensor]:
    """A policy of which each version changes a few elements."""
    base = np.random.default_rng(0)
    tensors = {
        "embed": torch.from_numpy(base.standard_normal((30, 16)).astype(np.float32)).to(torch.bfloat16),
        "norm": torch.from_numpy(base.standard_normal(16).astype(np.float32)),
        "frozen": torch.ones(5),
    }
    for step in range(1, version + 1):
        rng = np.random.default_rng(step)
        for name in ("embed", "norm"):
            flat = integers(tensors[name])
            flat[torch.from_numpy(rng.random(flat.numel()) < 0.05)] ^= 1
    return tensors


class Engine:
    def __init__(self, version: int = 0):
        self.version, self.weights = version, weights(version)

    def receive(self, frames) -> None:
        self.version = Update.read([frame.to_bytes() for frame in frames]).apply(self.weights, self.version)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(integers(a[name]), integers(b[name])) for name in a)


@pytest.fixture
def snapshot() -> Snapshot:
    made = Snapshot(pack_elements=0)  # as many frames as there are tensors
    made.take(weights(0).items(), 0)
    return made


@pytest.mark.parametrize("low_bits", [False, True])
def test_many_updates_do_not_drift(low_bits):
    snapshot, engine = Snapshot(low_bits=low_bits), Engine()
    snapshot.take(weights(0).items(), 0)
    for version in range(1, 8):
        frames = list(snapshot.update(weights(version).items(), version, 200))
        engine.receive(frames)
        snapshot.commit()
        assert (snapshot.version, engine.version) == (version, version)
        assert same(engine.weights, weights(version))


@given(
    outcomes=st.lists(st.sampled_from(["confirmed", "failed", "abandoned", "trainer_failed"]), max_size=8),
    pack=st.sampled_from([0, 1 << 24]),
)
def test_an_engine_that_got_nothing_still_fits_the_next_update(outcomes, pack):
    snapshot, engine = Snapshot(pack_elements=pack), Engine()
    snapshot.take(weights(0).items(), 0)
    for version, outcome in enumerate(outcomes, 1):
        if outcome == "trainer_failed":
            with pytest.raises(SenderError, match="did not give frozen"):
                list(snapshot.update(list(weights(version).items())[:2], version, 1))
            continue
        frames = snapshot.update(weights(version).items(), version, 1)
        if outcome == "abandoned":
            next(frames)
            frames.close()
            continue
        sent = list(frames)
        if outcome == "failed":
            snapshot.rollback()
        else:
            engine.receive(sent)
            snapshot.commit()
        assert snapshot.pending_bytes == 0
        assert not snapshot.needs_full_push(engine.version)
    final = len(outcomes) + 1
    engine.receive(snapshot.update(weights(final).items(), final, 1000))
    assert same(engine.weights, weights(final))


def test_a_late_engine_is_told_and_helped(snapshot):
    late = Engine()
    late.weights["embed"].zero_()
    list(snapshot.update(weights(1).items(), 1, 1000))
    snapshot.commit()
    assert snapshot.needs_full_push(late.version)
    assert snapshot.needs_full_push(None)
    with pytest.raises(WrongBase):
        late.receive(snapshot.update(weights(2).items(), 2, 1000))
    snapshot.rollback()
    late.receive(snapshot.full(100))
    assert same(late.weights, weights(1))
    late.receive(snapshot.update(weights(2).items(), 2, 1000))
    assert same(late.weights, weights(2))


def test_the_snapshot_is_a_copy_and_accounts_for_its_bytes(snapshot):
    assert snapshot.nbytes == 30 * 16 * 2 + 16 * 4 + 5 * 4
    assert snapshot.pending_bytes == 0
    new = weights(1)
    frames = list(snapshot.update(new.items(), 1, 1000))
    assert snapshot.pending_bytes == sum(frame.nbytes for frame in frames)
    for tensor in new.values():  # the trainer goes on before the engines confirm
        tensor.zero_()
    snapshot.commit()
    engine = Engine()
    engine.receive(snapshot.full(1000))
    assert same(engine.weights, weights(1))


def test_a_trainer_that_trains_in_place_does_not_change_what_was_taken():
    trainer, snapshot, engine = weights(0), Snapshot(), Engine()
    snapshot.take(trainer.items(), 0)
    for version in (1, 2):
        for name, tensor in weights(version).items():
            trainer[name].copy_(tensor)
        engine.receive(snapshot.update(trainer.items(), version, 1000))
        snapshot.commit()
        assert same(engine.weights, weights(version))


def test_tensors_are_drawn_as_frames_are(snapshot):
    drawn = []

    def source():
        for item in weights(1).items():
            drawn.append(item[0])
            yield item

    frames = snapshot.update(source(), 1, 1)
    assert drawn == []
    next(frames)
    assert len(drawn) == 2


def replaced(**changes) -> dict[str, torch.Tensor]:
    return {**weights(1), **changes}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([*weights(1).items(), ("norm", torch.zeros(16))], "gives norm twice"),
        ([*weights(1).items(), ("lm_head", torch.zeros(16))], "gives lm_head which the engines do not hold"),
        ([], "did not give embed, norm, frozen"),
        (replaced(norm=torch.zeros(17)).items(), r"norm was float32 \[16\], is float32 \[17\]"),
        (replaced(norm=torch.zeros(16).half()).items(), r"norm was float32 \[16\], is float16 \[16\]"),
    ],
)
def test_a_wrong_stream_is_refused_and_forgotten(snapshot, named, message):
    with pytest.raises(SenderError, match=message):
        list(snapshot.update(named, 1, 1000))
    assert snapshot.version == 0
    with pytest.raises(SenderError, match="commit while the snapshot is idle"):
        snapshot.commit()


def test_calls_in_the_wrong_order_are_refused(snapshot):
    with pytest.raises(SenderError, match="no base"):
        Snapshot().update([], 1, 10)
    with pytest.raises(SenderError, match="no weights to push"):
        Snapshot().full(10)
    with pytest.raises(SenderError, match="version 0 is what the engines hold"):
        snapshot.update([], 0, 10)
    frames = snapshot.update(weights(1).items(), 1, 1)
    next(frames)
    with pytest.raises(SenderError, match="commit while the snapshot is streaming"):
        snapshot.commit()
    list(frames)
    for call in (lambda: snapshot.update([], 2, 10), lambda: snapshot.take([], 2), lambda: snapshot.full(10)):
        with pytest.raises(SenderError, match="while the snapshot is pending, not idle"):
            call()


def test_a_stream_that_was_rolled_back_cannot_spoil_the_next(snapshot):
    first = snapshot.update(weights(1).items(), 1, 1)
    next(first)
    snapshot.rollback()
    frames = snapshot.update(weights(2).items(), 2, 1)
    sent = [next(frames)]
    with pytest.raises(SenderError, match="version 1 goes on after a rollback"):
        next(first)
    engine = Engine()
    engine.receive([*sent, *frames])
    snapshot.commit()
    assert same(engine.weights, weights(2))


def test_what_has_no_delta_is_refused_at_once():
    with pytest.raises(SenderError, match="w is complex64; known are"):
        Snapshot().take([("w", torch.zeros(2, dtype=torch.complex64))], 0)
    with pytest.raises(SenderError, match="gives w twice"):
        Snapshot().take([("w", torch.zeros(2)), ("w", torch.zeros(2))], 0)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_trainer_on_a_gpu(device):
    snapshot = Snapshot(device)
    snapshot.take([(name, tensor.cuda()) for name, tensor in weights(0).items()], 0)
    engine = Engine()
    engine.weights = {name: tensor.cuda() for name, tensor in engine.weights.items()}
    for version in (1, 2):
        frames = list(snapshot.update([(n, t.cuda()) for n, t in weights(version).items()], version, 200))
        assert any(frame.body.is_cuda for frame in frames)
        engine.version = Update.read(frames).apply(engine.weights, engine.version)
        snapshot.commit()
        assert same({name: tensor.cpu() for name, tensor in engine.weights.items()}, weights(version))
