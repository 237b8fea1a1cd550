"""Every key of `algo` changes what is learned, or this test says which other test shows what it does. A key that nobody
has given evidence for fails."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from test_loop import BASE, Setup

from rlrun.config.keys import all_keys
from rlrun.plan.build import load_plan

KL, TIS, DISTIL = "algo.kl_coef=0.1", "algo.importance.correction=tis", "algo.opd_coef=0.5"
TEACHER, OTHER_TEACHER = "algo.teacher_path={folder}/one", "algo.teacher_path={folder}/two"
REINFORCE = ["algo.advantage=reinforce_plus_plus", "algo.whiten_advantages=true"]

LEARNED: dict[str, tuple[list[str], str]] = {
    "algo.advantage": ([], "algo.advantage=rloo"),
    "algo.normalize_by_std": ([], "algo.normalize_by_std=false"),
    "algo.gamma": (REINFORCE, "algo.gamma=0.5"),
    "algo.gae_lambda": (["algo.advantage=gae"], "algo.gae_lambda=0.3"),
    "algo.whiten_advantages": ([], "algo.whiten_advantages=true"),
    "algo.group_size": ([], "algo.group_size=4"),
    "algo.prompts_per_rollout": ([], "algo.prompts_per_rollout=2"),
    "algo.groups_per_step": ([], "algo.groups_per_step=4"),
    "algo.loss": ([], "algo.loss=gspo"),
    "algo.clip_low": ([], "algo.clip_low=0.01"),
    "algo.clip_high": ([], "algo.clip_high=0.01"),
    "algo.dual_clip": ([], "algo.dual_clip=1.01"),
    "algo.entropy_coef": ([], "algo.entropy_coef=0.1"),
    "algo.loss_aggregation": ([], "algo.loss_aggregation=sequence_mean"),
    "algo.loss_constant": (["algo.loss_aggregation=constant"], "algo.loss_constant=2"),
    "algo.kl_coef": ([], KL),
    "algo.kl_reward_coef": ([], "algo.kl_reward_coef=0.1"),
    "algo.kl_estimator": ([KL], "algo.kl_estimator=k1"),
    "algo.kl_unbiased": ([KL], "algo.kl_unbiased=true"),
    "algo.reference_path": ([KL], "algo.reference_path={folder}/one"),
    "algo.old_logprobs": ([], "algo.old_logprobs=rollout"),
    "algo.importance.correction": ([], TIS),
    "algo.importance.level": ([TIS], "algo.importance.level=sequence"),
    "algo.importance.low": ([TIS], "algo.importance.low=0.95"),
    "algo.importance.high": ([TIS], "algo.importance.high=1.05"),
    "algo.importance.veto": ([], "algo.importance.veto=0.8"),
    "algo.opsm_delta": ([], "algo.opsm_delta=1e-6"),
    "algo.opd_coef": ([DISTIL, TEACHER], "algo.opd_coef=1.0"),
    "algo.teacher_path": ([DISTIL, TEACHER], OTHER_TEACHER),
    "algo.lr": ([], "algo.lr=0.5"),
}
"""Key -> (what makes it count, a value): two steps of the loop end in other weights than without it."""

OPTIMIZER = {
    "algo.lr_schedule": "cosine",
    "algo.lr_warmup_steps": "3",
    "algo.min_lr": "0.1",
    "algo.weight_decay": "0.1",
    "algo.adam_beta1": "0.8",
    "algo.adam_beta2": "0.9",
    "algo.adam_eps": "1e-6",
    "algo.clip_grad": "0.5",
}
"""What AdamW does, which the fake trainer has not; the Megatron trainer is held against torch's, key by key."""

LABELS = {"algo.name"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two checkpoints of the quickstart's architecture, as far as the plan looks at them."""
    path = tmp_path_factory.mktemp("models")
    spec = load_plan(["+experiment=quickstart"]).resolved_config["model"]["architecture"]
    config = {name: value for name, value in spec.items() if value is not None}
    for name in ("one", "two"):
        (path / name).mkdir()
        (path / name / "config.json").write_text(json.dumps({**config, "model_type": "qwen3", "hidden_act": "silu"}))
        (path / name / "model.safetensors").write_bytes(b"")
        (path / name / "tokenizer.json").write_text("{}")
    return str(path)


@pytest.fixture(scope="module")
def learned(folder, tmp_path_factory):
    """Words -> digest of the weights after two steps, on engines that disagree with the trainer a little."""

    @functools.cache
    def run(*words: str) -> str:
        written = [word.format(folder=folder) for word in words]
        setup = Setup(tmp_path_factory.mktemp("run"), "num_steps=2", "algo.lr=0.3", "eval.interval=2", *written)
        sample = setup.engine._one

        def with_a_gap(request, seed):
            completion = sample(request, seed)
            gap = tuple(0.3 * math.sin(7 * p + t) for p, t in enumerate(completion.token_ids))
            moved = tuple(a + b for a, b in zip(completion.logprobs, gap, strict=True))
            return type(completion)(completion.token_ids, moved, completion.finish_reason, completion.policy_version,
                                    completion.text)  # fmt: skip

        setup.engine._one = with_a_gap
        setup.run()
        return setup.trainer.digest()[0]["weights"]

    return run


def test_every_key_has_evidence():
    leaves = {path for path, key in all_keys().items() if path.startswith("algo.") and key.section is None}
    assert leaves == set(LEARNED) | set(OPTIMIZER) | LABELS


def test_the_same_words_learn_the_same(learned):
    assert learned("seed=5") == learned("seed=5", "algo.clip_grad=1.0")


@pytest.mark.parametrize("key", LEARNED)
def test_a_key_changes_what_is_learned(learned, key):
    needed, word = LEARNED[key]
    assert word.startswith(f"{key}=")
    assert learned(*needed, word) != learned(*needed)


@pytest.mark.parametrize("key", OPTIMIZER)
def test_a_key_of_the_optimizer_reaches_its_plan(key):
    decaying = ["algo.lr_schedule=linear"] if key == "algo.min_lr" else []
    plain = load_plan([*BASE, *decaying])
    changed = load_plan([*BASE, *decaying, f"{key}={OPTIMIZER[key]}"])
    assert changed.algo.optimizer != plain.algo.optimizer


def test_every_shipped_preset_is_an_algorithm_of_its_own():
    """Of keys whose effect is shown above; beside the experiment's own."""
    names = sorted(p.stem for p in (Path(__file__).parents[2] / "conf" / "algo").glob("*.yaml"))
    bases = {"sft": "+experiment=quickstart_sft"}
    plans = {name: load_plan([bases.get(name, "+experiment=quickstart"), f"algo={name}"]).algo for name in names}
    assert {"grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus"} <= set(plans)
    assert {name: plan.name for name, plan in plans.items()} == {name: name for name in names}
    assert len({dataclasses.replace(plan, name="") for plan in plans.values()}) == len(plans)
