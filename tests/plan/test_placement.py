from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlrun.config.sections.placement import (
    PlacementConfig,
    ReservedGpus,
    RolloutPlacement,
    ServerGroup,
    TrainerPlacement,
)
from rlrun.config.sections.rollout import ServedModel
from rlrun.plan.groups import engine_blocks, outside, server_groups
from rlrun.plan.placement import divisors, free_gpus, one_of, ports, slots, slots_needed, taken, trainer_slots
from rlrun.plan.rules.engines import fits_nodes, lies_well, places_of

MODES = ("colocated", "disaggregated", "train_only", "rollout_only")
MODELS = {"judge": ServedModel(path="owner/judge", gpus_per_engine=2), "reference": ServedModel(path="owner/reference")}

GROUPS = st.builds(
    lambda kind, count, size, model: ServerGroup(type=kind, gpus=count * size, gpus_per_engine=size, model=model),
    st.sampled_from(["regular", "prefill", "decode", "placeholder", "encoder"]),
    st.integers(1, 4),
    st.integers(1, 8),
    st.sampled_from(["policy", "judge", "reference"]),
)


def placement(trainer, engines, size, nodes, per_node, mode, groups, reserved):
    gone = sorted({gpu % per_node for gpu in reserved})
    return PlacementConfig(
        name="p",
        mode=mode,
        num_nodes=nodes,
        gpus_per_node=per_node,
        trainer=TrainerPlacement(gpus=trainer),
        rollout=RolloutPlacement(gpus=engines * size, gpus_per_engine=size, server_groups=groups),
        reserved=[ReservedGpus(node=0, gpus=gone, what="judge")] if gone else [],
    )


PLACEMENTS = st.builds(
    placement,
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(1, 12),
    st.integers(1, 8),
    st.sampled_from(MODES),
    st.one_of(st.just([]), st.lists(GROUPS, min_size=1, max_size=4)),
    st.lists(st.integers(0, 7), max_size=3),
)


@given(PLACEMENTS)
def test_engines_share_no_slot_and_leave_none_out(p):
    groups = server_groups(p, MODELS)
    flat = [slot for _, own in engine_blocks(groups) for slot in own]
    held = [slot for group in groups if not group.has_engines for slot in group.slots]
    assert len(flat + held) == len(set(flat + held)) == sum(group.gpus for group in groups)
    assert all(len(own) == group.size for group, own in engine_blocks(groups))
    assert bool(groups) == (p.mode != "train_only")


@given(PLACEMENTS)
def test_disaggregated_sides_are_disjoint_and_colocated_ones_begin_together(p):
    trainer, rollout = set(trainer_slots(p)), {slot for group in server_groups(p, MODELS) for slot in group.slots}
    assert trainer | rollout == set(range(slots_needed(p)))
    if p.mode == "colocated":
        assert min(trainer) == min(rollout) == 0
    else:
        assert not trainer & rollout
    assert (bool(trainer), bool(rollout)) == (p.mode != "rollout_only", p.mode != "train_only")


@given(PLACEMENTS)
def test_slots_count_the_free_gpus_in_order_and_no_reserved_one(p):
    found = slots(p)
    places = [(slot.node, slot.gpu) for slot in found]
    assert [slot.index for slot in found] == list(range(min(slots_needed(p), len(free_gpus(p)))))
    assert places == sorted(places) == free_gpus(p)[: len(places)]
    assert not set(places) & taken(p)
    if not p.reserved:
        assert all(slot.index == slot.node * p.gpus_per_node + slot.gpu for slot in found)


@given(PLACEMENTS, st.integers(1024, 30_000))
def test_ports_are_different_and_as_many_as_are_said(p, first):
    groups = server_groups(p, MODELS)
    engines, routers, count = ports(first, groups)
    flat = [port for e in engines for port in (e.http, e.dist, e.bootstrap) if port is not None] + routers
    assert len(flat) == len(set(flat)) == count
    assert sorted(flat) == list(range(first, first + count))
    kinds = [group.type for group, _ in engine_blocks(groups)]
    assert [e.bootstrap is not None for e in engines] == [kind == "prefill" for kind in kinds]


def test_data_parallel_attention_keeps_ports_for_its_ranks():
    rollout = RolloutPlacement(gpus=16, gpus_per_engine=8, dp_attention=4)
    first, second = ports(30_000, server_groups(PlacementConfig(name="p", rollout=rollout), {}))[0]
    assert second.http - first.dist > 30 + 4


def test_the_size_of_an_engine_is_that_of_its_group_else_of_its_model_else_the_general_one():
    groups = [
        ServerGroup(type="regular", gpus=8, gpus_per_engine=8, model="judge"),
        ServerGroup(type="regular", gpus=8, model="judge"),
        ServerGroup(type="regular", gpus=8, model="reference"),
        ServerGroup(type="regular", gpus=8),
    ]
    rollout = RolloutPlacement(gpus=32, gpus_per_engine=4, pp=2, server_groups=groups)
    found = server_groups(PlacementConfig(name="p", rollout=rollout), MODELS)
    assert [group.size for group in found] == [8, 2, 4, 4]
    assert [group.size_key.rpartition(".")[0] for group in found] == [
        "placement.rollout.server_groups.0",
        "rollout.models.judge",
        "placement.rollout",
        "placement.rollout",
    ]
    assert [(group.pp, group.tp) for group in found] == [(1, 8), (1, 2), (1, 4), (2, 2)]


def test_groups_without_a_name_get_different_ones():
    groups = [ServerGroup(type="regular", gpus=1) for _ in range(3)]
    groups.append(ServerGroup(type="regular", gpus=1, name="policy-regular-2"))
    names = [
        g.name for g in server_groups(PlacementConfig(name="p", rollout=RolloutPlacement(server_groups=groups)), {})
    ]
    assert names == ["policy-regular", "policy-regular-3", "policy-regular-4", "policy-regular-2"]


@given(st.integers(0, 40), st.integers(1, 32), st.integers(1, 8), st.integers(0, 6), st.integers(0, 80))
def test_a_group_lies_within_the_slots_when_its_last_engine_does(offset, size, per_node, engines, available):
    whole = size <= per_node or size % per_node == 0
    why = outside("g", "regular", offset, size, per_node, engines, available)
    if whole:
        assert (why is None) == (engines == 0 or offset + engines * size <= available)
    elif engines and offset + engines * size > available:
        assert why is not None


def test_a_group_outside_names_every_number():
    text = outside("decode", "decode", 4, 8, 8, 2, 16)
    assert text is not None
    for part in ("decode (decode)", "slot 4", "2 engines of 8 GPUs", "8 on a node", "requires 20 slots", "16 are"):
        assert part in text
    assert outside("decode", "decode", -1, 8, 8, 2, 100) is not None


def test_an_engine_lies_on_one_node_or_has_whole_ones():
    p = PlacementConfig(name="p", num_nodes=4, gpus_per_node=8)
    assert fits_nodes(p, 0, 32, 16)
    assert fits_nodes(p, 8, 16, 16)
    assert not fits_nodes(p, 4, 16, 16)  # not aligned: the executed case of 4 + 8 within 16 slots
    assert not fits_nodes(p, 4, 8, 8)
    assert not fits_nodes(p, 0, 24, 12)  # one and a half nodes
    places = places_of(p, 40)  # a fifth node that is not there
    assert places[-1] == (4, 7)
    assert lies_well(places[32:40], 8)


def test_a_reserved_gpu_makes_an_engine_cross_nodes_that_would_not():
    whole = PlacementConfig(name="p", num_nodes=2)
    less = PlacementConfig(name="p", num_nodes=2, reserved=[ReservedGpus(node=0, gpus=[7], what="judge")])
    assert fits_nodes(whole, 0, 16, 2)
    assert not fits_nodes(less, 0, 14, 2)
    assert fits_nodes(less, 0, 14, 1)


def test_divisors_and_their_words():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert [one_of([3]), one_of([1, 2]), one_of([1, 2, 4])] == ["3", "1 or 2", "1, 2 or 4"]
