"""Advantage estimator, policy loss and corrections: what contradicts itself, and knobs that would do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.errors import Problem
from rlrun.plan.context import Context, supervised
from rlrun.plan.functions import find_function, refuses
from rlrun.plan.rules.algo import inactive

COMPARING = ("grpo", "rloo", "reinforce_plus_plus_baseline")
"""Estimators that compare the samples of a prompt with each other."""
WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators whose advantages have no scale of their own."""
DISCOUNTING = ("reinforce_plus_plus", "gae")


def uses_reference(algo: Any) -> bool:
    return algo.kl_coef > 0 or algo.kl_reward_coef > 0


def one_step_a_rollout(algo: Any) -> bool:
    return algo.groups_per_step in (None, algo.prompts_per_rollout)


def ratio_is_one(algo: Any) -> bool:
    """Whether old and new policy are always the same: one optimizer step, over the trainer's own old log-probs."""
    return one_step_a_rollout(algo) and algo.old_logprobs == "trainer"


def estimator(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    name = c.config.algo.advantage
    if name in COMPARING and c.config.algo.group_size < 2:
        summary = f"{name} compares the samples of a prompt with each other, so one sample has advantage 0"
        keys = ("algo.group_size", "algo.advantage")
        yield c.problem("group-size-too-small", summary, *keys, hint="set algo.group_size to 2 or more, e.g. 8")
    if name in WHITENED and not c.config.algo.whiten_advantages:
        summary = f"the advantages of {name} have no scale of their own and have to be whitened"
        keys = ("algo.whiten_advantages", "algo.advantage")
        yield c.problem("whitening-required", summary, *keys, hint="set algo.whiten_advantages to true")
    if name != "grpo" and c.changed("algo.normalize_by_std"):
        yield inactive(c, "algo.normalize_by_std", f"is a choice of grpo, which {name} has not", "algo.advantage")
    if name not in DISCOUNTING and c.changed("algo.gamma"):
        yield inactive(c, "algo.gamma", f"discounts rewards of single tokens, which {name} has not", "algo.advantage")


def kl(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    a = c.config.algo
    if a.kl_coef > 0 and a.kl_reward_coef > 0:
        summary = f"the KL would count twice: {a.kl_coef:g} in the loss and {a.kl_reward_coef:g} in the rewards"
        keys = ("algo.kl_coef", "algo.kl_reward_coef")
        yield c.problem("kl-counted-twice", summary, *keys, hint="set algo.kl_reward_coef to 0, or algo.kl_coef to 0")
    if not uses_reference(a):
        if c.changed("algo.kl_estimator"):
            yield inactive(c, "algo.kl_estimator", "estimates a penalty that has weight 0", "algo.kl_coef")
        if c.changed("algo.reference_path"):
            yield inactive(c, "algo.reference_path", "names a model for a penalty that has weight 0", "algo.kl_coef")
    if a.kl_coef == 0 and a.kl_unbiased:
        yield inactive(c, "algo.kl_unbiased", "shapes a KL in the loss, which has weight 0", "algo.kl_coef")


def clipping(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    a = c.config.algo
    if a.dual_clip is not None and a.loss == "cispo":
        yield inactive(c, "algo.dual_clip", "bounds a clipped ratio's loss, and cispo bounds the ratio", "algo.loss")
    for key, value in (("algo.dual_clip", a.dual_clip), ("algo.opsm_delta", a.opsm_delta)):
        if value is not None and ratio_is_one(a) and ":" not in a.loss:
            steps = "algo.groups_per_step"
            why = "acts where the policy has moved, and with one optimizer step a rollout it never has"
            yield inactive(c, key, why, steps)


def importance(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    a = c.config.algo
    i, prefix = a.importance, "algo.importance"
    if i.correction == "none":
        for name in ("level", "low", "high"):
            if c.changed(f"{prefix}.{name}"):
                yield inactive(
                    c, f"{prefix}.{name}", "shapes a correction that is switched off", f"{prefix}.correction"
                )
    if a.old_logprobs == "rollout":
        for name in ("correction", "veto"):
            if c.changed(f"{prefix}.{name}"):
                why = "corrects the gap between old and engine log-probs, which are the same here"
                yield inactive(c, f"{prefix}.{name}", why, "algo.old_logprobs")
    if i.correction != "none" and i.level == "token" and a.loss == "gspo":
        summary = "gspo has one ratio a sequence, and the correction one weight a token"
        keys = (f"{prefix}.level", "algo.loss")
        yield c.problem("importance-level", summary, *keys, hint=f"set {prefix}.level to sequence or geometric")


def distillation(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    a = c.config.algo
    if a.opd_coef > 0 and a.teacher_path is None:
        summary = "on-policy distillation needs a teacher"
        hint = "set algo.opd_coef to 0, or algo.teacher_path to the folder of a checkpoint"
        yield c.problem("missing-value", summary, "algo.teacher_path", "algo.opd_coef", hint=hint)
    if a.opd_coef == 0 and a.teacher_path is not None:
        yield inactive(c, "algo.teacher_path", "names a teacher whose weight is 0", "algo.opd_coef")


def own_functions(c: Context) -> Iterator[Problem]:
    """Found and read, not imported: a loss needs torch."""
    for key, arguments in (("algo.advantage", ("scored",)), ("algo.loss", ("tokens", "options"))):
        path = c.value(key)
        if ":" not in path:
            continue
        try:
            function = find_function(path)
        except ValueError as e:
            hint = f"set {key} to package.module:name of a function that can be imported from here"
            yield c.problem("function-not-found", f"cannot use {path}: {e}", key, hint=hint)
            continue
        reason = refuses(function, len(arguments))
        if reason is not None:
            called = f"{function.name}({', '.join(arguments)})"
            summary = f"{path} cannot be called as {called}: {reason}"
            yield c.problem("function-signature", summary, key, hint=f"make it `def {called}`")


RULES = (estimator, kl, clipping, importance, distillation, own_functions)
