"""Experiments on many GPUs fit with room, on the GPU and on the host, and what makes them fit is needed."""

from __future__ import annotations

import pytest

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan

LARGE = [
    ["+experiment=qwen3_30b_a3b_grpo"],
    ["+experiment=glm4_9b_grpo"],
    ["+experiment=glm4_7_355b_grpo"],
    ["+experiment=glm4_7_355b_grpo", "placement=glm_128"],
    ["+experiment=minimax_m2_5_grpo"],
    ["+experiment=glm4_7_flash_ppo"],
]


@pytest.mark.parametrize("words", LARGE, ids=lambda words: " ".join(words))
def test_a_large_experiment_fits(words):
    memory = load_plan(words).memory
    assert memory is not None
    assert memory.verdict == "fits"
    assert memory.kv.samples >= 16
    if memory.host.node_bytes is not None:
        assert memory.host.total_bytes < 0.9 * memory.host.node_bytes


def problem(*words: str) -> tuple[str, str, str]:
    with pytest.raises(RlrunError) as e:
        load_plan(list(words))
    [found] = e.value.problems
    return found.code, found.summary, found.hint or ""


def test_what_no_arrangement_can_hold_is_said_in_numbers():
    code, summary, hint = problem("+experiment=glm4_7_355b_grpo", "trainer.optimizer_offload=false")
    assert code == "memory-does-not-fit"
    assert "No arrangement of 64 GPUs can hold it: 18 bytes a parameter are at least 92.4 GiB a GPU, and" in summary
    assert hint.startswith("set trainer.optimizer_offload to true (train ")
    assert "a node's host memory +" in hint


def test_a_node_with_too_little_host_memory_is_refused():
    code, summary, _ = problem("+experiment=glm4_7_355b_grpo", "placement.host_memory_gib=1024")
    assert code == "host-memory-does-not-fit"
    assert "while a checkpoint is saved, and has 1024" in summary
