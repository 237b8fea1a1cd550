"""What the plan decides about an algorithm: which log-probs are computed, what is held beside the policy, what is said
about it, and that functions of the user's own are read without being imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlrun.plan.build import load_plan, plan_from_json, plan_to_json
from rlrun.plan.functions import find_function, refuses
from rlrun.plan.render_loss import loss_rows

QUICK, BIG = "+experiment=quickstart", "+experiment=qwen3_grpo"
ONE_STEP = [QUICK, "algo.prompts_per_rollout=8"]
CONFIG = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def small_checkpoint(folder: Path, weights: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([QUICK], "trainer"),
        (ONE_STEP, "current"),
        ([*ONE_STEP, "algo.kl_coef=0.1"], "current"),
        ([*ONE_STEP, "algo.kl_reward_coef=0.1"], "trainer"),
        ([*ONE_STEP, "algo.loss=gspo"], "current"),
        ([*ONE_STEP, "algo.old_logprobs=rollout"], "rollout"),
        ([QUICK, "algo.old_logprobs=rollout"], "rollout"),
    ],
)
def test_the_pass_before_the_update_is_left_out_only_where_the_update_itself_gives_the_same(words, expected):
    assert load_plan(words).algo.old_logprobs == expected


def test_a_teacher_of_another_size_is_planned_with_its_memory(tmp_path):
    teacher = small_checkpoint(tmp_path / "small")
    plan = load_plan([BIG, "algo.opd_coef=0.5", f"algo.teacher_path={teacher}"])
    assert plan.algo.teacher.path == str(teacher)
    assert plan.algo.teacher.spec.num_parameters == 596_049_920
    assert plan.algo.old_logprobs == "trainer", "the distillation needs them"
    assert plan_from_json(plan_to_json(plan)) == plan
    terms = {term.name: term.num_bytes for phase in plan.memory.phases for term in phase.terms}
    assert terms["teacher"] == pytest.approx(2 * 596_049_920 / plan.train.tp, rel=0.01)
    assert ("distil", f"0.5 x log-ratio to the teacher {teacher}, 596,049,920 parameters") in loss_rows(plan.algo)


def test_a_teacher_with_gated_delta_nets_needs_whole_samples(monkeypatch):
    from layouts import spec

    from rlrun.config.load import load
    from rlrun.plan.context import Context
    from rlrun.plan.rules.frozen import teacher

    monkeypatch.setattr(Context, "teacher", spec("qwen3_5_2b"))
    words = [BIG, "algo.opd_coef=0.5", "algo.teacher_path=/somewhere", "placement.trainer.tp=1"]

    def found(cp):
        loaded = load([*words, f"placement.trainer.cp={cp}"])
        return {problem.code: problem.hint for problem in teacher(Context(loaded.config, loaded.origins))}

    assert "cp-unsupported" not in found(1)
    assert found(2)["cp-unsupported"] == "set placement.trainer.cp to 1"


def test_a_reference_counts_in_the_hash_by_its_content(tmp_path):
    words = [BIG, "model=qwen3_0_6b", "algo.kl_coef=0.1"]
    plain = load_plan(words)
    first = load_plan([*words, f"algo.reference_path={small_checkpoint(tmp_path / 'a')}"])
    moved = load_plan([*words, f"algo.reference_path={small_checkpoint(tmp_path / 'b')}"])
    other = load_plan([*words, f"algo.reference_path={small_checkpoint(tmp_path / 'c', b'more')}"])
    assert first.config_hash == moved.config_hash
    assert len({plan.config_hash for plan in (plain, first, other)}) == 3
    assert first.algo.reference_path == str(tmp_path / "a")


def test_the_plan_says_what_is_not_as_usual():
    words = [
        QUICK, "algo=reinforce_plus_plus", "algo.gamma=0.99", "algo.loss=gspo", "algo.dual_clip=3",
        "algo.entropy_coef=0.01", "algo.importance.correction=tis", "algo.importance.level=sequence",
        "algo.importance.veto=1e-4", "algo.opsm_delta=0.1",
    ]  # fmt: skip
    rows = dict(loss_rows(load_plan(words).algo))
    assert rows["estimate"] == "reinforce_plus_plus (return of each token), gamma 0.99, whitened"
    assert rows["loss"] == (
        "gspo clip 0.8..1.2, dual clip 3, entropy bonus 0.01, token_mean, KL 0.001 in the rewards (k1)"
    )
    assert rows["correct"] == (
        "tis by sequence, engine to trainer 0..2, veto below 0.0001, off-policy sequences masked above 0.1"
    )
    assert dict(loss_rows(load_plan([QUICK, "algo.old_logprobs=rollout"]).algo))["ratio"] == (
        "over the log-probs of the engines"
    )
    unbiased = load_plan([QUICK, "algo.kl_coef=0.1", "algo.kl_unbiased=true"])
    assert dict(loss_rows(unbiased.algo))["loss"].endswith("KL 0.1 (low_var, unbiased)")


def test_a_function_is_found_without_running_its_module_or_the_packages_around_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outer_pkg" / "inner").mkdir(parents=True)
    (tmp_path / "outer_pkg" / "__init__.py").write_text("raise SystemExit('this ran')\n")
    (tmp_path / "outer_pkg" / "inner" / "__init__.py").write_text("from ..deep import loss as handed_on\n")
    (tmp_path / "outer_pkg" / "deep.py").write_text("import torch\ndef loss(tokens, options, scale=2): ...\n")
    function = find_function("outer_pkg.inner:handed_on")
    assert function.name == "loss"
    assert "outer_pkg" not in sys.modules
    assert refuses(function, 2) is None
    assert refuses(function, 3) is None
    assert refuses(function, 1) == "it takes 3 arguments (tokens, options, scale)"
    assert refuses(function, 4) == "it takes 3 arguments (tokens, options, scale)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no function loss"),
        ("loss = print", "is a variable"),
        ("class loss: ...", "is a class"),
        ("from own_module import loss", "without an end"),
        ("def loss(:", "cannot be read"),
    ],
)
def test_what_is_no_plain_function_is_said(tmp_path, monkeypatch, text, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_module.py").write_text(text)
    with pytest.raises(ValueError, match=reason):
        find_function("own_module:loss")
