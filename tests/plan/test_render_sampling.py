"""How the plan puts dynamic sampling, over-long samples and batches of variable size into words."""

from __future__ import annotations

import pytest

from rlrun.plan.build import load_plan, plan_from_json, plan_to_json
from rlrun.plan.render import render_plan

DROP = "dynamic_sampling.filter=drop_zero_variance"


def rows(*words):
    plan = load_plan(["+experiment=qwen3_grpo", *words])
    assert plan_from_json(plan_to_json(plan)) == plan
    lines = [line.strip().split("  ", 1) for line in render_plan(plan, None).splitlines() if "  " in line.strip()]
    return {name: text.strip() for name, text in reversed(lines)}  # the time block has a step of its own


def test_a_plain_plan_says_nothing_of_groups():
    found = rows()
    assert "groups" not in found
    assert found["step"] == "64 prompts x 8 samples = 512 samples, 128 per dp rank; 200 steps"


@pytest.mark.parametrize(
    ("words", "row", "text"),
    [
        (
            [DROP, "dynamic_sampling.over_sampling=1.5", "dynamic_sampling.surplus=buffer"],
            "groups",
            "equal rewards dropped; 96 generated, at most 3 refills until 64 kept; surplus to next step",
        ),
        (
            [DROP, "dynamic_sampling.max_refills=1"],
            "groups",
            "equal rewards dropped; 64 generated, at most 1 refill until 64 kept; surplus dropped",
        ),
        (
            ["rollout.overlong=drop", "algo.groups_per_step=null"],
            "groups",
            "fewer than two whole samples dropped; 64 generated, at most 3 refills until 1 kept",
        ),
        ([DROP], "step", "64 prompts x 8 samples = 512 samples kept, 128 per dp rank; 200 steps"),
        (
            [DROP, "algo.groups_per_step=null", "dynamic_sampling.over_sampling=1.5"],
            "step",
            "96 prompts x 8 samples = 768, kept ones in one optimizer step, at most 192 per dp rank; 200 steps",
        ),
        (
            ["algo.groups_per_step=null"],
            "step",
            "64 prompts x 8 samples = 512, all in one optimizer step, at most 128 per dp rank; 200 steps",
        ),
        (
            ["rollout.overlong=penalize", "rollout.overlong_buffer_tokens=512"],
            "length",
            "prompt up to 512, response up to 2,048 tokens, reward up to 1 lower over the last 512, temperature 1",
        ),
        (
            ["rollout.overlong=mask"],
            "length",
            "prompt up to 512, response up to 2,048 tokens, cut samples teach nothing, temperature 1",
        ),
        (["reward.key=score"], "reward", "rlrun.agents.rewards:number_match, entry score"),
        (
            ["trainer.balance_by=flops"],
            "batch",
            "packed up to 16,384 tokens a micro-batch, full recompute, balanced by operations, optimizer state sharded "
            "over dp",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_plan_says_it_in_words(words, row, text):
    assert rows(*words)[row] == text


def test_a_constant_is_the_response_limit_unless_it_is_given():
    assert "constant of 2,048 tokens" in rows("algo=dr_grpo")["loss"]
    assert "constant of 4,096 tokens" in rows("algo=dr_grpo", "algo.loss_constant=4096")["loss"]
