"""What a cluster grants is held against the plan before anything starts; no Ray here, only the places."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.plan.build import load_plan
from rlrun.runtime.bundles import in_slot_order, misplaced, visible_without_reserved
from rlrun.runtime.cluster import _visible_gpus

BIG = "+experiment=qwen3_grpo"
SPLIT = load_plan([BIG, "placement=split_8gpu"])
WIDE_WORDS = ["placement=split_8gpu", "placement.num_nodes=2", "placement.trainer.gpus=4", "placement.rollout.gpus=12"]
WIDE = load_plan([BIG, *WIDE_WORDS])
RESERVED = load_plan(
    [
        BIG,
        "placement.trainer.gpus=6",
        "placement.rollout.gpus=6",
        "placement.reserved=[{node: 0, gpus: [3, 0], what: judge}]",
    ]
)


def node(address: str, *gpus: int) -> list[tuple[str, int]]:
    return [(address, gpu) for gpu in gpus]


def test_the_planned_places_are_right():
    assert misplaced(SPLIT, node("10.0.0.1", *range(8)), True) is None
    assert misplaced(WIDE, node("10.0.0.1", *range(8)) + node("10.0.0.2", *range(8)), True) is None


def test_an_engine_that_the_cluster_has_torn_apart_is_named():
    places = node("10.0.0.1", *range(7)) + node("10.0.0.2", 0)
    why = misplaced(SPLIT, places, True)
    assert why is not None
    assert "engine 1 needs its 2 GPUs on 1 node, and they were granted on 10.0.0.1, 10.0.0.2" in why


def test_nodes_smaller_than_planned_are_named():
    whole = load_plan([BIG])
    why = misplaced(whole, node("10.0.0.1", *range(4)) + node("10.0.0.2", *range(4)), True)
    assert why == "the plan has its 8 slots on 1 node of 8 GPUs, and they were granted on 2: 10.0.0.1, 10.0.0.2"
    two = load_plan([BIG, "placement.num_nodes=2", "placement.trainer.gpus=16", "placement.rollout.gpus=16"])
    uneven = misplaced(two, node("10.0.0.1", *range(7)) + node("10.0.0.2", *range(9)), True)
    assert uneven == "slot 7 is planned on node 0, which is 10.0.0.1, and was granted on 10.0.0.2"


def test_too_few_bundles_name_the_group_that_does_not_fit_and_its_numbers():
    why = misplaced(SPLIT, node("10.0.0.1", *range(7)), True)
    assert why is not None
    for part in ("policy-regular (regular)", "slot 4", "2 engines of 2 GPUs", "requires 8 slots", "7 are available"):
        assert part in why


def test_a_reserved_gpu_must_not_be_granted():
    assert misplaced(RESERVED, node("10.0.0.1", 1, 2, 4, 5, 6, 7), True) is None
    why = misplaced(RESERVED, node("10.0.0.1", 0, 1, 2, 4, 5, 6), True)
    assert why is not None
    assert "GPU 0 of 10.0.0.1 was granted" in why
    assert "judge" in why
    assert misplaced(RESERVED, node("10.0.0.1", 0, 1, 2, 4, 5, 6), False) is None


@pytest.mark.parametrize(
    ("before", "after"), [(None, "1,2,4,5,6,7"), ("7,6,5,4,3,2,1,0", "6,5,3,2,1,0"), (" 4, 5 ,6,7", "5,6")]
)
def test_reserved_gpus_are_hidden_from_a_ray_of_our_own(before, after):
    assert visible_without_reserved(RESERVED, before) == after
    assert visible_without_reserved(SPLIT, before) == before


@given(st.permutations([("10.0.0.2", 1), ("10.0.0.10", 0), ("10.0.0.2", 10), ("10.0.0.2", 2)]))
def test_slots_are_in_the_order_of_numbers_not_of_texts(places):
    found = [places[bundle] for bundle in in_slot_order(places)]
    assert found == [("10.0.0.2", 1), ("10.0.0.2", 2), ("10.0.0.2", 10), ("10.0.0.10", 0)]


@pytest.mark.parametrize("before", [None, "7,6,5,4,3,2,1,0"])
def test_what_was_visible_is_visible_again_once_ray_is_up(before, monkeypatch):
    name = "CUDA_VISIBLE_DEVICES"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with _visible_gpus(RESERVED):
        assert os.environ[name] == visible_without_reserved(RESERVED, before)
    assert os.environ.get(name) == before
    with _visible_gpus(None):
        assert os.environ.get(name) == before
