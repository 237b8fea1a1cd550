"""What a cluster grants is held against the plan before anything starts; no Ray here, only the places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.plan.build import load_plan
from rlrun.runtime.bundles import in_slot_order, misplaced, visible_without_reserved

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
