from __future__ import annotations

import pytest

from rlrun.plan.attention import attention_share
from rlrun.plan.build import load_plan

PLAN = load_plan(["+experiment=qwen3_grpo", "trainer.balance_by=flops"])


def test_the_share_of_qwen3_4b_by_hand():
    """36 layers of 32 heads of width 128; every parameter but the norms of the layers is a weight a token passes."""
    norms = 36 * 2 * 2560 + 2560
    expected = 36 * 32 * (128 + 128) / (2 * (4_022_468_096 - norms))
    assert PLAN.train.attention_share == pytest.approx(expected, rel=1e-12)
    assert attention_share(PLAN.model.spec) == PLAN.train.attention_share


def test_tokens_are_balanced_unless_asked_otherwise():
    assert load_plan(["+experiment=qwen3_grpo"]).train.attention_share == 0.0


def test_attention_weighs_more_where_few_experts_are_active():
    """Qwen3-30B-A3B: 3.35 billion of its weights are passed by a token, embedding left out and output layer counted."""
    spec = load_plan(["+experiment=qwen3_grpo", "placement=cpu_1", "model=qwen3_30b_a3b"]).model.spec
    assert attention_share(spec) == pytest.approx(48 * 32 * 256 / (2 * 3.04e9), rel=0.02)
