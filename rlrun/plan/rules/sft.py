"""Supervised learning of given responses (algo.loss sft): what it needs, and what it has no use for."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.config.keys import all_keys
from rlrun.config.partial import Unreadable
from rlrun.errors import Problem
from rlrun.plan.context import Context, supervised
from rlrun.plan.groups import has_engines
from rlrun.plan.rules.algo import inactive

LOSS, MODE, RESPONSE, LABEL = "algo.loss", "placement.mode", "data.train.response_key", "data.train.label_key"

OLD_POLICY = "compares the policy with another one, and sft does not"
ADVANTAGES = "is about advantages, and sft has none"
SAMPLES = "is about generated samples, and sft generates none"

USELESS = {
    "algo.advantage": ADVANTAGES,
    "algo.normalize_by_std": ADVANTAGES,
    "algo.gamma": ADVANTAGES,
    "algo.whiten_advantages": ADVANTAGES,
    "algo.clip_low": OLD_POLICY,
    "algo.clip_high": OLD_POLICY,
    "algo.dual_clip": OLD_POLICY,
    "algo.kl_coef": OLD_POLICY,
    "algo.kl_reward_coef": OLD_POLICY,
    "algo.kl_estimator": OLD_POLICY,
    "algo.kl_unbiased": OLD_POLICY,
    "algo.reference_path": OLD_POLICY,
    "algo.old_logprobs": OLD_POLICY,
    "algo.importance.correction": OLD_POLICY,
    "algo.importance.level": OLD_POLICY,
    "algo.importance.low": OLD_POLICY,
    "algo.importance.high": OLD_POLICY,
    "algo.importance.veto": OLD_POLICY,
    "algo.opsm_delta": OLD_POLICY,
    "algo.opd_coef": ADVANTAGES,
    "algo.teacher_path": ADVANTAGES,
    "rollout.temperature": SAMPLES,
    "rollout.overlong": SAMPLES,
    "rollout.overlong_buffer_tokens": SAMPLES,
    "rollout.overlong_penalty": SAMPLES,
    "dynamic_sampling.filter": SAMPLES,
    "dynamic_sampling.over_sampling": SAMPLES,
    "dynamic_sampling.max_refills": SAMPLES,
    "dynamic_sampling.surplus": SAMPLES,
    "dynamic_sampling.sample_filter": SAMPLES,
}
"""Key -> why it does nothing with sft. Those of engines are in rules/modes.py, those of a critic in rules/critic.py."""


def placement(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo) and has_engines(c.config.placement):
        summary = f"sft learns given responses, and a {c.config.placement.mode} placement has engines to generate some"
        hint = f"set {MODE} to train_only; placement=cpu_train and placement=train_8gpu have it"
        yield c.problem("sft-needs-train-only", summary, MODE, LOSS, hint=hint)


def responses(c: Context) -> Iterator[Problem]:
    written = c.config.data.train.response_key
    if not supervised(c.config.algo):
        if written is not None:
            summary = f"{RESPONSE} names responses to learn, and loss {c.config.algo.loss} learns from its own"
            hint = f"set {RESPONSE} to null, or {LOSS} to sft"
            yield c.problem("inactive-key", summary, RESPONSE, LOSS, hint=hint)
        return
    if written is None:
        hint = f"set {RESPONSE} to the field of the rows that holds the response"
        yield c.problem("missing-value", f"sft needs {RESPONSE}", RESPONSE, LOSS, hint=hint)
    if c.changed(LABEL):
        yield _inactive(c, LABEL, "is for a reward function, and sft has none")


def rewards(c: Context) -> Iterator[Problem]:
    reward = c.config.reward
    if supervised(c.config.algo):
        if reward is not None:
            summary = "nothing is rewarded with sft"
            try:
                yield c.problem("inactive-key", summary, "reward.function", LOSS, hint="set reward to null")
            except Unreadable:  # there are other keys of reward, and that one is missing
                yield c.problem("inactive-key", summary, LOSS, hint="set reward to null")
    elif reward is None:
        summary = f"reward has no value, and loss {c.config.algo.loss} learns from rewards"
        hint = f"set reward.function to {all_keys()['reward.function'].expected}, or start from +experiment=NAME"
        yield c.problem("missing-value", summary, LOSS, hint=hint)


def one_sample(c: Context) -> Iterator[Problem]:
    size = c.config.algo.group_size
    if supervised(c.config.algo) and size != 1:
        summary = f"a row has one response, and {size} samples of each prompt are asked for"
        yield c.problem("sft-group-size", summary, "algo.group_size", LOSS, hint="set algo.group_size to 1")


def useless(c: Context) -> Iterator[Problem]:
    if not supervised(c.config.algo):
        return
    lengths = {"rollout.expected_response_tokens": SAMPLES} if c.config.placement.device == "cuda" else {}
    for key, why in (USELESS | lengths).items():  # on cpu nobody reads the length, and rules/engines.py says so
        try:
            if c.changed(key):
                yield _inactive(c, key, why)
        except Unreadable:  # it has a problem of its own
            continue
    if c.config.async_mode.name != "sync":
        summary = "async_mode lets generation run ahead, and sft generates nothing"
        yield c.problem("inactive-key", summary, "async_mode.name", LOSS, hint="choose async_mode=sync")


def _inactive(c: Context, key: str, why: str) -> Problem:
    return inactive(c, key, why, LOSS)


RULES = (placement, responses, rewards, one_sample, useless)
