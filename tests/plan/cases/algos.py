"""Codes of estimators, policy losses, corrections, and the frozen models beside the policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from case import BIG, QUICK, Case

SEVERAL_STEPS = "algo.groups_per_step=8"
CONFIG = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def checkpoint(name: str, tokenizer: str = "{}", **changes: object) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        model = folder / name
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(CONFIG | changes))
        (model / "model.safetensors").write_bytes(b"")
        (model / "tokenizer.json").write_text(tokenizer)

    return make


def both(*makers: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: [make(folder) for make in makers]  # type: ignore[return-value]


def module(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "mine.py").write_text(text)  # type: ignore[return-value]


KL, OPD = "algo.kl_coef=0.1", "algo.opd_coef=0.5"
REINFORCE = "algo.advantage=reinforce_plus_plus"
TIS = "algo.importance.correction=tis"
ALONE = ["placement=cpu_1"]

CASES = [
    Case("group-size-too-small", [QUICK, "algo.advantage=rloo", "algo.group_size=1"], ["algo.group_size=2"]),
    Case("whitening-required", [QUICK, REINFORCE], ["algo.whiten_advantages=true"]),
    Case("whitening-required", [QUICK, f"{REINFORCE}_baseline"], ["algo.whiten_advantages=true"]),
    Case("kl-counted-twice", [QUICK, KL, "algo.kl_reward_coef=0.2"], ["algo.kl_reward_coef=0"]),
    Case("kl-counted-twice", [QUICK, KL, "algo.kl_reward_coef=0.2"], ["algo.kl_coef=0"]),
    Case("importance-level", [QUICK, "algo.loss=gspo", TIS], ["algo.importance.level=sequence"]),
    Case("inactive-key", [QUICK, "algo.advantage=rloo", "algo.normalize_by_std=false"], ["algo.normalize_by_std=true"]),
    Case("inactive-key", [QUICK, "algo.gamma=0.9"], ["algo.gamma=1"]),
    Case("inactive-key", [QUICK, "algo.kl_unbiased=true"], ["algo.kl_unbiased=false"]),
    Case("inactive-key", [QUICK, "algo.reference_path=x"], ["algo.reference_path=null"]),
    Case("inactive-key", [QUICK, "algo.teacher_path=x"], ["algo.teacher_path=null"]),
    Case("inactive-key", [QUICK, SEVERAL_STEPS, "algo.loss=cispo", "algo.dual_clip=3"], ["algo.dual_clip=null"]),
    Case("inactive-key", [QUICK, "algo.dual_clip=3"], ["algo.dual_clip=null"]),
    Case("inactive-key", [QUICK, "algo.opsm_delta=1e-4"], ["algo.opsm_delta=null"]),
    Case("inactive-key", [QUICK, "algo.importance.high=3"], ["algo.importance.high=2"]),
    Case("inactive-key", [QUICK, "algo.importance.level=sequence"], ["algo.importance.level=token"]),
    Case("inactive-key", [QUICK, TIS, "algo.old_logprobs=rollout"], ["algo.importance.correction=none"]),
    Case(
        "inactive-key", [QUICK, "algo.importance.veto=0.1", "algo.old_logprobs=rollout"], ["algo.importance.veto=null"]
    ),
    Case("missing-value", [QUICK, OPD], ["algo.opd_coef=0"]),
    Case("function-not-found", [QUICK, "algo.loss=no_such_module:loss"]),
    Case(
        "function-not-found",
        [QUICK, "algo.loss=mine:loss"],
        prepare=module("import torch_of_another_world\nloss = 3\n"),
        repair=module("import torch_of_another_world\n\ndef loss(tokens, options): ...\n"),
    ),
    Case(
        "function-not-found",
        [QUICK, "algo.advantage=mine:estimate"],
        prepare=module("def estimate(scored:"),
        repair=module("def estimate(scored): ..."),
    ),
    Case(
        "function-not-found",
        [QUICK, "algo.advantage=mine:estimate"],
        prepare=module("async def estimate(scored): ..."),
        repair=module("def estimate(scored, power=2): ..."),
    ),
    Case(
        "function-signature",
        [QUICK, "algo.loss=mine:loss"],
        prepare=module("def loss(tokens): ..."),
        repair=module("def loss(tokens, options): ..."),
    ),
    Case(
        "function-signature",
        [QUICK, "algo.advantage=mine:estimate"],
        prepare=module("def estimate(scored, *, power): ..."),
        repair=module("def estimate(*everything): ..."),
    ),
    Case("model-not-found", [BIG, KL, "algo.reference_path=gone"], prepare=checkpoint("x"), repair=checkpoint("gone")),
    Case(
        "reference-mismatch",
        [BIG, KL, "algo.reference_path=ref"],
        ["algo.reference_path=null"],
        prepare=checkpoint("ref", num_hidden_layers=28),
    ),
    Case(
        "teacher-tokenizer",
        [BIG, *ALONE, OPD, "algo.teacher_path=big"],
        prepare=checkpoint("big", vocab_size=152064),
        repair=checkpoint("big", hidden_size=5120, num_hidden_layers=64),
    ),
    Case(
        "teacher-tokenizer",
        [BIG, *ALONE, OPD, "model.path=./small", "algo.teacher_path=big"],
        prepare=both(checkpoint("small"), checkpoint("big", tokenizer='{"other": 1}')),
        repair=both(checkpoint("small"), checkpoint("big")),
    ),
    Case(
        "teacher-indivisible",
        [BIG, "placement=cpu_tp2", OPD, "algo.teacher_path=big", "algo.groups_per_step=32"],
        ["placement.trainer.tp=1"],
        prepare=checkpoint("big", num_attention_heads=33, num_key_value_heads=3),
    ),
]
