"""How the plan puts into words what is saved when, and what of it stays."""

from __future__ import annotations

import pytest

from rlrun.plan.build import load_plan, plan_from_json, plan_to_json
from rlrun.plan.render import render_plan


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["checkpoint.interval=null"], "at the end"),
        (["checkpoint.interval=10", "checkpoint.keep=3"], "every 10 steps and at the end, newest 3 kept"),
        (
            ["checkpoint.interval=10", "checkpoint.keep_every=50", "checkpoint.async_save=true"],
            "newest 2 kept, those of every 50 steps for good, written beside the training",
        ),
        (
            ["checkpoint.interval=null", "checkpoint.hf_interval=20", "checkpoint.hf_keep=2"],
            "at the end; Hugging Face weights every 20 steps, newest 2 kept",
        ),
    ],
)
def test_the_plan_says_it_in_words(words, text):
    plan = load_plan(["+experiment=quickstart", "num_steps=100", *words])
    assert plan_from_json(plan_to_json(plan)) == plan
    shown = " ".join(render_plan(plan, None).split())
    assert text in shown
    assert ("Hugging Face weights every" in shown) == ("checkpoint.hf_interval=20" in words)
    assert ("beside the training" in shown) == ("checkpoint.async_save=true" in words)
