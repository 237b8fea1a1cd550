"""Over-long samples, dynamic sampling and the functions that look at groups."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.config.sections.data import FILTERS
from rlrun.errors import Problem, RlrunError
from rlrun.plan.batch import drops_groups
from rlrun.plan.context import Context, supervised
from rlrun.plan.rules.algo import inactive
from rlrun.plan.rules.served import models_of

SECTION = "dynamic_sampling"


def overlong(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    r = c.config.rollout
    if r.overlong != "penalize":
        for key in ("rollout.overlong_buffer_tokens", "rollout.overlong_penalty"):
            if c.changed(key):
                yield inactive(c, key, "shapes a penalty that is not given", "rollout.overlong")
    elif r.overlong_buffer_tokens is None:
        key, most = "rollout.overlong_buffer_tokens", r.max_response_tokens
        hint = f"set {key} to {max(1, most // 5)}"
        yield c.problem("missing-value", "penalize needs overlong_buffer_tokens", key, "rollout.overlong", hint=hint)
    elif r.overlong_buffer_tokens > r.max_response_tokens:
        key, most = "rollout.overlong_buffer_tokens", r.max_response_tokens
        summary = f"the penalty would grow over {r.overlong_buffer_tokens} tokens, of the {most} that a sample can have"
        hint = f"set {key} to {max(1, most // 5)}, at most {most}"
        yield c.problem("overlong-buffer-too-long", summary, key, "rollout.max_response_tokens", hint=hint)
    if r.overlong == "drop" and c.config.algo.group_size < 2:
        summary = "cut samples leave their group, and a group of one is then always dropped"
        keys = ("rollout.overlong", "algo.group_size")
        yield c.problem("overlong-drop-needs-group", summary, *keys, hint="set rollout.overlong to mask")


def group_filter(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    d, a = c.config.dynamic_sampling, c.config.algo
    if d.filter == "drop_zero_variance" and a.group_size < 2:
        summary = "the rewards of a group of one are all equal, so no group would be kept"
        keys = (f"{SECTION}.filter", "algo.group_size")
        yield c.problem("filter-needs-group", summary, *keys, hint=f"set {SECTION}.filter to none")


def over_sampling(c: Context) -> Iterator[Problem]:
    if supervised(c.config.algo):
        return  # rules/sft.py speaks of these keys
    d, a = c.config.dynamic_sampling, c.config.algo
    if not drops_groups(c.config):
        for name, why in (
            ("over_sampling", "generates more groups than are needed, and none is left out"),
            ("max_refills", "is for groups that are left out, and none is"),
            ("surplus", "is for groups that are not needed, and all are"),
        ):
            if c.changed(f"{SECTION}.{name}"):
                yield inactive(c, f"{SECTION}.{name}", why, f"{SECTION}.filter")
        return
    if a.groups_per_step is None:
        if c.changed(f"{SECTION}.surplus"):
            why = "is for groups that are not needed, and a step takes all that are kept"
            yield inactive(c, f"{SECTION}.surplus", why, "algo.groups_per_step")
    elif d.max_refills == 0 and d.over_sampling == 1:
        summary = f"{a.prompts_per_rollout} groups are generated and as many are needed: none may be left out"
        keys = (f"{SECTION}.max_refills", f"{SECTION}.over_sampling", "algo.groups_per_step")
        hint = f"set {keys[0]} to 3, {keys[1]} to 1.5, or {keys[2]} to null"
        yield c.problem("no-refill", summary, *keys, hint=hint)


def hooks(c: Context) -> Iterator[Problem]:
    """Imports the user's modules for real: whatever they raise, the run would raise too."""
    from rlrun.agents.hooks import load_function

    for key in ("reward.postprocess", f"{SECTION}.filter", f"{SECTION}.sample_filter"):
        if key.startswith("reward.") and c.config.reward is None:
            continue
        path = c.value(key)
        if path is None or path in FILTERS:
            continue
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)  # as `python -m rlrun` has it; the console script has not
        default = show(all_keys()[key].default)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the plan
                load_function(path, models_of(c))
        except RlrunError as e:
            for p in e.problems:
                yield c.problem(p.code, p.summary, key, hint=f"{p.hint}, or set {key} to {default}")
        except SystemExit as e:
            summary = f"cannot load {path}: the module ends the program (exit code {e.code})"
            hint = f'move what runs at import below `if __name__ == "__main__":`, or set {key} to {default}'
            yield c.problem("hook-not-importable", summary, key, hint=hint)


def loss_constant(c: Context) -> Iterator[Problem]:
    if c.config.algo.loss_aggregation != "constant" and c.changed("algo.loss_constant"):
        yield inactive(c, "algo.loss_constant", "divides nothing", "algo.loss_aggregation")


def balance(c: Context) -> Iterator[Problem]:
    t, p = c.config.trainer, c.config.placement.trainer
    if p.gpus == p.tp * p.cp and t.balance_by != "tokens":
        why = "shares work out among replicas and pipeline micro-batches, and there is one replica"
        yield inactive(c, "trainer.balance_by", why, "placement.trainer.gpus")


RULES = (overlong, group_filter, over_sampling, hooks, loss_constant, balance)
