"""What can be planned and not yet run is said by the plan, and refused before anything starts."""

from __future__ import annotations

import pytest

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.families import FAMILIES, RUNNABLE
from rlrun.plan.render import render_plan
from rlrun.runtime.preflight import check_machine

ON_CPU = ["+experiment=qwen3_grpo", "placement=cpu_1"]
OF_FAMILY = {
    "qwen3_moe": "qwen3_30b_a3b",
    "qwen3_5": "qwen3_5_0_8b",
    "qwen3_5_moe": "qwen3_5_35b_a3b",
    "glm4": "glm4_9b",
    "glm4_moe": "glm4_5_air",
    "glm4_moe_lite": "glm4_7_flash",
    "glm_moe_dsa": "glm5",
    "minimax_m2": "minimax_m2",
}


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(RUNNABLE)))
def test_a_family_that_cannot_run_yet_says_so_before_anything_starts(family):
    plan = load_plan([*ON_CPU, f"model={OF_FAMILY[family]}"])
    assert plan.model.spec.family == family
    assert f"run       not yet: family {family} " in render_plan(plan)
    with pytest.raises(RlrunError) as e:
        check_machine(plan)
    assert "family-not-runnable" in [p.code for p in e.value.problems]


def test_a_family_that_runs_is_not_refused(monkeypatch):
    monkeypatch.setattr("rlrun.runtime.preflight._installed", lambda package: True)
    check_machine(load_plan(["+experiment=quickstart"]))


@pytest.mark.parametrize("mode", ["one_step", "fully_async"])
def test_an_asynchronous_run_is_planned_and_refused_before_anything_starts(mode):
    plan = load_plan(["+experiment=qwen3_grpo", "placement=split_8gpu", f"async_mode={mode}"])
    assert f"run       not yet: async_mode {mode} " in render_plan(plan)
    with pytest.raises(RlrunError) as e:
        check_machine(plan)
    assert "async-not-runnable" in [p.code for p in e.value.problems]
