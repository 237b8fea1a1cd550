"""Who is on the GPU when, with trainer and engines taking turns; the host; critic; uneven stages; expert tensors."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.plan.host_memory import host_memory
from rlrun.plan.kv import engine_weights, kv_bytes_per_token, kv_cache, state_bytes_per_request
from rlrun.plan.layout import GIB, GPUS
from rlrun.plan.memory import estimate, state
from rlrun.plan.parameters import is_even, stage_parameters, stage_sizes, stage_starts
from rlrun.plan.types import HostMemory, MemoryPlan

sys.path.insert(0, str(Path(__file__).parent))
from layouts import layout, spec

TURNS = {"trainer_offload": True, "rollout_offload": True, "mem_fraction": 0.8}


def names(memory: MemoryPlan, phase: str) -> set[str]:
    [found] = [p for p in memory.phases if p.phase == phase]
    return {term.name for term in found.terms} - {"overhead"}


def term(memory: MemoryPlan | HostMemory, name: str, phase: str = "train") -> int:
    terms = memory.terms if isinstance(memory, HostMemory) else next(p.terms for p in memory.phases if p.phase == phase)
    return next((t.num_bytes for t in terms if t.name == name), 0)


def test_taking_turns_nobody_is_there_while_the_other_works_but_for_the_push():
    memory = estimate(layout(**TURNS))
    assert [p.phase for p in memory.phases] == ["train", "logprob", "save", "wake-up", "rollout"]
    engine = {"engine weights", "KV cache"}
    assert not names(memory, "train") & engine
    assert not names(memory, "save") & engine
    assert names(memory, "wake-up") == {"weights", "engine weights", "bucket", "full tensors"}
    assert names(memory, "rollout") == engine
    assert memory.verdict == "fits"
    assert estimate(layout(mem_fraction=0.8)).verdict == "does not fit"


def test_an_engine_alone_that_is_released_wakes_up_beside_the_whole_trainer():
    memory = estimate(layout(rollout_offload=True))
    state_names = {"weights", "gradients", "optimizer"}
    assert names(memory, "wake-up") == state_names | {"engine weights", "bucket", "full tensors"}
    assert names(memory, "rollout") == state_names | {"engine weights", "KV cache"}


def test_a_trainer_that_leaves_alone_does_not_move_the_engine():
    memory = estimate(layout(trainer_offload=True))
    assert {"engine weights", "KV cache"} <= names(memory, "train")
    assert names(memory, "sync") == {"weights", "engine weights", "KV cache", "bucket", "full tensors"}
    assert names(memory, "rollout") == {"engine weights", "KV cache"}


def test_a_canary_needs_the_trainers_weights_beside_the_whole_engine():
    plain, canary = estimate(layout(**TURNS)), estimate(layout(**TURNS, canary=True))
    assert names(canary, "wake-up") == {"weights", "engine weights", "KV cache"}
    by_name = {p.phase: p.total_bytes for p in canary.phases}
    assert by_name["wake-up"] == by_name["rollout"] + term(plain, "weights", "wake-up")
    assert {p.phase: p.total_bytes for p in plain.phases if p.phase != "wake-up"}.items() <= by_name.items()


def test_each_phase_ends_with_the_overhead_of_both_processes():
    """Contexts stay when memory is released."""
    for m in (layout(), layout(**TURNS)):
        assert {term(estimate(m), "overhead", p.phase) for p in estimate(m).phases} == {6 * GIB}
    apart = layout(colocated=False)
    assert {term(estimate(apart), "overhead", p.phase) for p in estimate(apart).phases} == {3 * GIB}


def test_an_optimizer_on_the_host_leaves_6_bytes_a_parameter():
    [here], [away] = state(layout()), state(layout(optimizer_offload=True))
    assert here["weights"] == away["weights"]
    assert (away["weights"] + away["gradients"]) * 2 == 6 * here["weights"]
    assert away["optimizer"] == 0


def test_a_checkpoint_gathers_a_float32_tensor_of_every_parameter_unless_on_the_host():
    m = layout()
    [(parameters, _)] = m.parameters()
    assert term(estimate(m), "gathered state", "save") == 4 * (parameters + -(-parameters // 4))
    for changes in ({"gather_on_host": True}, {"distributed_optimizer": False}):
        assert "gathered state" not in names(estimate(replace(m, **changes)), "save")


def test_bfloat16_gradients_are_copied_in_float32_for_the_step():
    """A model so small that the optimizer's step is the worst moment."""
    m = layout("qwen3_0_6b", tp=1, dp=1, max_tokens=1, sample_tokens=1, recompute=False)
    [(parameters, _)] = m.parameters()
    assert term(estimate(m), "optimizer step") == 4 * parameters
    half = replace(m, gradient_bytes=2)
    assert term(estimate(half), "optimizer step") == 8 * parameters
    assert term(estimate(half), "gradients") == 2 * parameters


# Host


def test_delta_transport_keeps_a_pinned_copy_and_one_for_each_engine_of_the_node():
    """Pinned blocks have up to twice the bytes. Two engines of a GPU each on a node of 8 with 2 rollout GPUs."""
    m = layout()
    [(parameters, _)] = replace(m, tp=1, dp=8).parameters()
    delta = replace(m, delta_sync=True, rollout_gpus=2, engine_tp=1)
    assert term(host_memory(delta), "delta snapshot") == 2 * 2 * parameters
    assert term(host_memory(delta), "engine copies") == 2 * 2 * parameters
    assert term(host_memory(replace(delta, engine_tp=2)), "engine copies") == 2 * parameters
    assert "delta snapshot" not in {t.name for t in host_memory(m).terms}
    largest = 2 * 151_936 * m.spec.hidden_size
    assert term(estimate(delta), "full tensors", "sync") == 2 * largest
    assert term(estimate(delta), "delta", "sync") == largest + GIB // 2


def test_gathered_on_the_gpu_every_rank_stages_the_state_and_on_the_host_the_first_replica_does():
    """tp 2 x dp 4 on one node: 12 bytes of state on whoever gathers; by NCCL 8 more while it is joined, and 12 of every
    rank's shard; on the host what is written: the state, and 2 bytes of weights in blocks of twice the size."""
    m = layout()
    [(parameters, _)] = m.parameters()
    shard = -(-parameters // 4)
    everywhere, first = host_memory(m), host_memory(replace(m, gather_on_host=True))
    assert term(everywhere, "processes") == 16 * 4 * GIB
    assert term(everywhere, "checkpoint") == 8 * (20 * parameters + 12 * shard)
    assert term(first, "checkpoint") == 2 * (12 + 2 * 2) * parameters
    plain = host_memory(replace(m, distributed_optimizer=False))
    assert term(plain, "checkpoint") == 2 * 2 * 14 * parameters, "written from pinned memory"


def test_a_checkpoint_written_beside_training_lies_beside_the_parked_trainer():
    m = layout(**TURNS, gather_on_host=True)
    [(parameters, _)] = m.parameters()
    parked, both = host_memory(m), host_memory(replace(m, async_save=True))
    assert both.moment == "rollout"
    assert term(both, "checkpoint copy") == both.total_bytes - parked.total_bytes == 2 * (12 + 2 * 2) * parameters
    stays = layout(gather_on_host=True)  # nothing is parked: a save is the worst moment in any case
    assert host_memory(replace(stays, async_save=True)) == host_memory(stays)


def test_beside_training_the_critic_is_gathered_while_the_policy_is_still_written():
    m = layout(critic=True, gather_on_host=True)
    (policy, _), (critic, _) = m.parameters()[0], m.parameters(scalar_head=True)[0]
    at_once, beside = host_memory(m), host_memory(replace(m, async_save=True))
    assert term(at_once, "checkpoint") == 2 * 16 * max(policy, critic)
    assert term(beside, "checkpoint") == 2 * 16 * (policy + critic)


def test_a_parked_trainer_is_6_bytes_a_parameter_and_the_optimizer():
    m = layout(**TURNS, gather_on_host=True)
    [terms] = state(m)
    parked = host_memory(m)
    assert parked.moment == "rollout"
    assert term(parked, "parked trainer") == 8 * (terms["weights"] + terms["gradients"] + terms["optimizer"])
    with_reference = host_memory(replace(m, reference=True))
    assert with_reference.total_bytes - parked.total_bytes == 8 * terms["weights"]


def test_an_optimizer_on_the_host_is_there_all_the_time_with_a_copy_of_the_gradients():
    m = layout(optimizer_offload=True)
    [(parameters, _)] = m.parameters()
    owned = 8 * -(-parameters // 4)
    host = host_memory(m)
    assert (term(host, "optimizer"), term(host, "pinned gradients")) == (12 * owned, 4 * owned)
    gathered = 8 * (20 * parameters + 12 * -(-parameters // 4))
    assert term(host, "checkpoint") == gathered  # by NCCL, whatever it is gathered from


# Engines


def test_states_of_all_running_requests_come_off_the_pool():
    few, many = (layout("qwen3_5_9b", tp=1, dp=8, max_running=n) for n in (1, 100))
    each = kv_bytes_per_token(few.spec, 1)
    less = 99 * state_bytes_per_request(few.spec, 1)
    assert kv_cache(few).tokens - kv_cache(many).tokens == pytest.approx(less / each, abs=1)
    assert kv_cache(many).state_bytes == 100 * state_bytes_per_request(few.spec, 1)
    assert term(estimate(many), "request states", "rollout") == kv_cache(many).state_bytes
    full = replace(few, max_running=100_000)
    assert kv_cache(full).samples == 0


def test_weights_cache_and_states_together_are_the_engines_share():
    m = layout("qwen3_5_9b", tp=1, dp=8)
    kv = kv_cache(m)
    used = engine_weights(m) + kv.tokens * kv.bytes_per_token + kv.state_bytes
    share = 0.5 * GPUS["h100_80gb"] * GIB
    assert share - kv.bytes_per_token <= used + 1 <= share + 1


# Critic, layouts


def test_a_critic_is_a_second_trunk_with_a_scalar_head():
    m = layout("qwen3_8b", critic=True)
    [terms], h, v = state(m), 4096, 151936
    [(policy, _)] = m.parameters()
    critic = policy - v // 2 * h + h  # the output layer's share gone, one weight a hidden unit
    assert terms["critic"] == 6 * critic
    assert terms["critic optimizer"] == 12 * -(-critic // 4)
    assert {"critic", "critic optimizer"} <= names(estimate(m), "train")
    assert not {"critic", "critic optimizer"} & names(estimate(replace(m, **TURNS)), "rollout")


def test_a_critic_of_a_tied_model_has_no_second_embedding():
    m = layout("qwen3_4b", pp=2, dp=2)
    policy, critic = m.parameters(), m.parameters(scalar_head=True)
    assert policy[0] == critic[0]
    assert policy[1][0] - critic[1][0] == 151936 // 2 * 2560 - 2560


def test_expert_tensor_parallelism_divides_experts_alone():
    s = spec("qwen3_30b_a3b")
    [(plain, experts)], [(same, half)] = stage_parameters(s, 2, ep=4), stage_parameters(s, 2, ep=4, etp=2)
    assert (same, half) == (plain, experts // 2)


def test_experts_are_sharded_over_the_ranks_that_hold_the_same_ones():
    m = layout("qwen3_30b_a3b", tp=4, dp=4, ep=4, etp=2)
    assert m.shards == (4, 2)
    assert replace(m, distributed_optimizer=False).shards == (1, 1)


def test_context_parallelism_divides_samples_and_shards_the_optimizer_but_no_weights():
    one, two = (
        layout(dp=2, max_tokens=1024, sample_tokens=8192),
        layout(dp=1, cp=2, max_tokens=1024, sample_tokens=8192),
    )
    assert (one.tokens, two.tokens) == (8192, 4096)
    assert state(one) == state(two)
    padded = replace(two, max_tokens=None, micro_batch_size=3)
    assert padded.tokens == 3 * 4096


@pytest.mark.parametrize(
    ("layers", "pp", "first", "last", "sizes"),
    [
        (78, 8, 14, 16, [14, *[8] * 6, 16]),
        (92, 4, None, None, [23] * 4),
        (62, 4, 15, 15, [15, 16, 16, 15]),
        (3, 2, 1, None, [1, 2]),
        (3, 2, None, 1, [2, 1]),
        (5, 2, 2, 3, [2, 3]),
    ],
)
def test_stages_have_what_they_are_given_and_the_rest_in_equal_parts(layers, pp, first, last, sizes):
    assert stage_sizes(layers, pp, first, last) == sizes
    assert is_even(layers, pp, first, last)


@pytest.mark.parametrize(
    ("layers", "pp", "first", "last"), [(5, 2, None, None), (5, 2, 2, 2), (5, 2, 5, None), (9, 4, 2, 2), (4, 3, 3, 1)]
)
def test_stages_that_do_not_come_out_are_told(layers, pp, first, last):
    assert not is_even(layers, pp, first, last)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 80), st.integers(1, 9), st.none() | st.integers(1, 30), st.none() | st.integers(1, 30))
def test_even_stages_cover_every_layer_once(layers, pp, first, last):
    sizes = stage_sizes(layers, pp, first, last)
    if is_even(layers, pp, first, last):
        assert sum(sizes) == layers
        assert len(sizes) == pp
        assert (sizes[0], sizes[-1]) == (first or sizes[0], last or sizes[-1])
        covered = [
            i for start, size in zip(stage_starts(sizes), sizes, strict=True) for i in range(start, start + size)
        ]
        assert covered == list(range(layers))


def test_uneven_stages_together_have_the_whole_model():
    s = spec("glm5_2")
    stages = stage_parameters(s, 1, stage_sizes(78, 8, 14, 16))
    assert sum(plain + experts for plain, experts in stages) == s.num_parameters
