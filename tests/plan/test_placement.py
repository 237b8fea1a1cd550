from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rlrun.plan.placement import divisors, engine_slots, one_of, ports, slots, trainer_slots

PLACEMENTS = st.builds(
    lambda trainer, engines, size, per_node, mode: SimpleNamespace(
        mode=mode,
        gpus_per_node=per_node,
        trainer=SimpleNamespace(gpus=trainer),
        rollout=SimpleNamespace(gpus=engines * size, gpus_per_engine=size),
    ),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from(["colocated", "disaggregated"]),
)


@given(PLACEMENTS)
def test_engines_share_no_slot_and_leave_none_out(p):
    flat = [slot for engine in engine_slots(p) for slot in engine]
    assert len(flat) == len(set(flat)) == p.rollout.gpus
    assert all(len(engine) == p.rollout.gpus_per_engine for engine in engine_slots(p))


@given(PLACEMENTS)
def test_disaggregated_sides_are_disjoint_and_colocated_ones_begin_together(p):
    trainer, engines = set(trainer_slots(p)), {slot for engine in engine_slots(p) for slot in engine}
    used = {slot.index for slot in slots(p)}
    assert trainer | engines == used
    if p.mode == "disaggregated":
        assert not trainer & engines
    else:
        assert min(trainer) == min(engines) == 0


@given(PLACEMENTS)
def test_a_slot_number_is_node_times_gpus_per_node_plus_gpu(p):
    for position, slot in enumerate(slots(p)):
        assert slot.index == position == slot.node * p.gpus_per_node + slot.gpu
        assert 0 <= slot.gpu < p.gpus_per_node


@given(st.integers(1024, 60_000), st.integers(1, 16))
def test_ports_are_consecutive_and_different(first, engines):
    pairs, router = ports(first, engines)
    flat = [port for pair in pairs for port in pair] + ([router] if router is not None else [])
    assert flat == list(range(first, first + 2 * engines + (engines > 1)))


def test_divisors_and_their_words():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert [one_of([3]), one_of([1, 2]), one_of([1, 2, 4])] == ["3", "1 or 2", "1, 2 or 4"]
