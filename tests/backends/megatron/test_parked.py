"""Storages that leave and come back, without a model around them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rlrun.backends.megatron.parking import Parked  # noqa: E402


def nbytes(*tensors):
    return [t.untyped_storage().nbytes() for t in tensors]


def test_views_share_what_comes_back_and_gradients_come_back_as_zeros():
    whole, gradient = torch.arange(10.0), torch.ones(6)
    half, other = whole[5:], torch.full((3,), 7.0)
    parked = Parked()
    parked.park([whole, half, other], [gradient, half])
    assert nbytes(whole, half, other, gradient) == [0, 0, 0, 0]
    assert parked.away
    assert parked.host_bytes == 4 * 13
    parked.unpark()
    assert not parked.away
    assert torch.equal(whole, torch.arange(10.0))
    assert torch.equal(half, torch.arange(5.0, 10.0))
    assert half.data_ptr() == whole.data_ptr() + 5 * 4
    assert torch.equal(other, torch.full((3,), 7.0))
    assert torch.equal(gradient, torch.zeros(6))


def test_what_stays_is_not_touched_and_the_host_memory_is_used_again():
    weights, moments = torch.ones(8), torch.ones(8)
    parked = Parked()
    for turn in range(3):
        moments += turn
        before = moments.clone()
        parked.park([moments, weights[2:4]], staying=[weights])
        assert nbytes(weights, moments) == [32, 0]
        assert parked.host_bytes == 32
        parked.unpark()
        assert torch.equal(moments, before)
    replaced = torch.zeros(100)
    parked.park([replaced])  # a load has put other tensors in their place
    assert parked.host_bytes == 400
    parked.unpark()


def test_a_tensor_that_numpy_has_seen_comes_back_too():
    seen = torch.arange(4.0)
    view = seen.numpy()
    parked = Parked()
    parked.park([seen])
    assert seen.isnan().all(), "cannot be emptied; must not be used"
    parked.unpark()
    assert view.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_parking_twice_is_a_mistake():
    parked, tensor = Parked(), torch.ones(2)
    parked.park([tensor])
    with pytest.raises(AssertionError, match="parked already"):
        parked.park([tensor])
