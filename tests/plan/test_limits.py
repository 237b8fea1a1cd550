"""What can be planned and not yet run is said by the plan, and refused before anything starts."""

from __future__ import annotations

import pytest

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.families import FAMILIES, RANDOM, RUNNABLE
from rlrun.plan.limits import limits
from rlrun.plan.render import render_plan
from rlrun.runtime.preflight import check_machine

ON_CPU = ["+experiment=qwen3_grpo", "placement=cpu_1", "rollout.max_response_tokens=1536"]
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


def test_a_router_that_engines_would_not_refresh_is_a_limit_with_its_mitigation():
    found = {limit.code: limit for limit in limits(load_plan([*ON_CPU, "model=glm4_5_air"]))}
    assert "fp32 copy" in found["stale-router"].what
    assert "refreshed in place" in found["stale-router"].hint
    assert "stale-router" not in [limit.code for limit in limits(load_plan([*ON_CPU, "model=glm4_7_flash"]))]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_random_weights_of_a_family_without_a_maker_are_planned_and_not_made(family):
    found = [limit.code for limit in limits(load_plan(["+experiment=quickstart", f"model=tiny_{family}"]))]
    assert ("random-family" in found) == (family not in RANDOM)
