"""A trainer whose state leaves and comes back after every step computes what one computes whose state stays."""

from __future__ import annotations

import numpy as np
import pytest
from megatron_plans import make_plan, world

pytestmark = pytest.mark.engines

CASES = {
    "tp1": {},
    "bfloat16": {"dtype": "bfloat16"},
    "whole optimizer": {"distributed_optimizer": False, "dtype": "bfloat16"},
    "tp2": {"tp": 2, "dtype": "bfloat16"},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2, "dtype": "bfloat16"},
}


@pytest.fixture(scope="module")
def batches(checkpoints):
    import megatron_reference as hf

    return [hf.make_batch(checkpoints["tied"], seed) for seed in range(3)]


def compare(stayed, parked):
    for before, after in zip(stayed, parked, strict=True):
        assert after["metrics"] == before["metrics"]
        assert after["digest"] == before["digest"]
        assert after["whole"] == before["whole"]
        for one, other in zip(before["logprobs"], after["logprobs"], strict=True):
            for mine, theirs in zip(one, other, strict=True):
                np.testing.assert_array_equal(mine, theirs)
        for one, other in zip(before["weights"], after["weights"], strict=True):
            assert one.keys() == other.keys()
            for name in one:
                np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def nothing_left(found, shared: bool):
    """`shared`: main weights of a float32 model are its parameters, which stay for the push."""
    whole = found["whole"]
    for for_the_push, parked in zip(found["left"][::2], found["left"][1::2], strict=True):
        assert set(parked.values()) == {0}, parked
        assert for_the_push["policy"] == whole["policy"] > 0
        assert for_the_push["gradients"] == for_the_push["main_grads"] == for_the_push["others"] == 0
        assert for_the_push["optimizer"] == (whole["policy"] if shared else 0)
    assert found["refused"] == ["needs the rest of the trainer's state, which are parked"] * len(found["refused"])
    on_host = whole["policy"] + whole["others"] + (0 if shared else whole["optimizer"])
    assert found["parked"] >= on_host  # one copy; shared storages once


@pytest.mark.parametrize("case", CASES)
def test_parked_after_every_step_it_is_the_same_bit_for_bit(ranks, checkpoints, batches, case, tmp_path):
    plan = make_plan(**CASES[case])
    runs = []
    for parks in (False, True):
        folder = tmp_path / str(parks)
        folder.mkdir()
        arguments = (plan, checkpoints["tied"], batches, [], parks, str(folder))
        runs.append(ranks.run(world(plan), "turns", *arguments))
    compare(*runs)
    for found in runs[1]:
        nothing_left(found, shared=plan.model.dtype == "float32")


def test_a_critic_leaves_and_comes_back_with_the_policy(ranks, checkpoints, batches):
    import critic_reference as hf

    plan = make_plan(dp=2, critic=True, uses_reference=False)
    values = [hf.make_batch(checkpoints["tied"], seed) for seed in range(3)]
    stayed, parked = (
        ranks.run(world(plan), "turns", plan, checkpoints["tied"], batches, values, parks) for parks in (False, True)
    )
    compare(stayed, parked)
    for found in parked:
        assert found["whole"]["others"] > 0
        assert all(set(left.values()) == {0} for left in found["left"][1::2])
