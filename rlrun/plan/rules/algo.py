"""Numbers of the algorithm: batch arithmetic, learning rate, evaluation, and knobs that would do nothing."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator

from rlrun.config.keys import all_keys
from rlrun.config.origin import show
from rlrun.errors import Problem
from rlrun.plan.batch import steps_per_rollout
from rlrun.plan.context import Context
from rlrun.plan.groups import has_engines, has_trainer
from rlrun.plan.placement import divisors, one_of

MLFLOW_SCHEMES = ("http", "https", "file", "sqlite", "mysql", "postgresql", "mssql", "databricks")
"""Of mlflow.tracking.registry and mlflow.store.db: what `tracking.uri` may begin with."""


def optimizer_steps(c: Context) -> int:
    """Optimizer steps of the whole run."""
    return c.config.num_steps * steps_per_rollout(c.config)


def groups_per_step(c: Context) -> Iterator[Problem]:
    a = c.config.algo
    if a.groups_per_step is not None and a.prompts_per_rollout % a.groups_per_step:
        valid = divisors(a.prompts_per_rollout)
        summary = f"{a.prompts_per_rollout} prompt groups cannot form equal optimizer steps of {a.groups_per_step}"
        keys = ("algo.groups_per_step", "algo.prompts_per_rollout")
        hint = f"set algo.groups_per_step to {one_of(valid[-8:])}, or to null"
        yield c.problem("groups-per-step-indivisible", summary, *keys, hint=hint)


def learning_rate(c: Context) -> Iterator[Problem]:
    a = c.config.algo
    if a.min_lr > a.lr:
        summary = f"the learning rate cannot decay from {a.lr:g} to {a.min_lr:g}"
        yield c.problem(
            "min-lr-above-lr", summary, "algo.min_lr", "algo.lr", hint=f"set algo.min_lr to {a.lr / 10:g} or less"
        )
    if a.lr_schedule == "constant" and a.min_lr > 0:
        yield inactive(c, "algo.min_lr", "is the floor of a decaying learning rate", "algo.lr_schedule")


def warmup(c: Context) -> Iterator[Problem]:
    steps, total = c.config.algo.lr_warmup_steps, optimizer_steps(c)
    if steps > total:
        summary = f"{steps} warm-up steps do not fit into the run's {total} optimizer steps"
        keys = ("algo.lr_warmup_steps", "num_steps")
        hint = f"set algo.lr_warmup_steps to {total // 10}, at most {total}"
        yield c.problem("warmup-longer-than-run", summary, *keys, hint=hint)


def stop_after(c: Context) -> Iterator[Problem]:
    stop, steps = c.config.stop_after, c.config.num_steps
    if stop is not None and stop > steps:
        summary = f"the run ends at step {steps}, before step {stop}"
        hint = f"set stop_after to null, or to at most {steps}"
        yield c.problem("stop-after-end", summary, "stop_after", "num_steps", hint=hint)


def evaluation(c: Context) -> Iterator[Problem]:
    e, data = c.config.eval, c.config.data.eval
    if e.interval is not None and data is None:
        summary = "evaluation is switched on and has no prompts"
        hint = "set eval.interval to null, or data.eval.path to a JSONL file"
        yield c.problem("eval-without-data", summary, "eval.interval", "data.eval", hint=hint)
    if e.interval is None:
        if data is not None:
            hint = f"set eval.interval to {max(1, c.config.num_steps // 10)}, or data.eval to null"
            if not has_engines(c.config.placement):  # rules/modes.py refuses an interval
                hint = "set data.eval to null"
            summary = "data.eval is never used: evaluation is switched off"
            yield c.problem("inactive-key", summary, "data.eval.path", "eval.interval", hint=hint)
        for key in ("samples_per_prompt", "temperature", "top_p", "top_k", "max_prompts"):
            if c.changed(f"eval.{key}"):
                yield inactive(c, f"eval.{key}", "shapes an evaluation that is switched off", "eval.interval")
    elif e.temperature == 0 and e.samples_per_prompt > 1:
        summary = f"at temperature 0 the {e.samples_per_prompt} samples of a prompt are the same"
        keys = ("eval.samples_per_prompt", "eval.temperature")
        yield c.problem(
            "eval-samples-equal", summary, *keys, hint="set eval.samples_per_prompt to 1, or eval.temperature to 1.0"
        )


def sampling(c: Context) -> Iterator[Problem]:
    """What is learned from is drawn from the whole distribution; what is only measured need not be."""
    for name in ("top_p", "top_k", "min_p"):
        key = f"rollout.{name}"
        if c.changed(key):
            summary = (
                f"with {name} {show(c.value(key))} samples come from a cut and renormalised distribution, and the "
                "engine's log-probs are those of the whole one: ratios and corrections of the loss would be wrong"
            )
            hint = f"set {key} to {show(all_keys()[key].default)}"
            if name != "min_p":
                hint += f"; eval.{name} cuts evaluation samples"
            yield c.problem("sampling-truncated", summary, key, hint=hint)
    if c.value("eval.top_k") == 0:
        yield c.problem(
            "not-allowed", "no token is among the 0 most probable", "eval.top_k", hint="set eval.top_k to -1"
        )
    if c.config.eval.interval is not None and c.config.eval.temperature == 0:
        for name in ("top_p", "top_k"):
            if c.changed(f"eval.{name}"):
                why = "cuts a distribution, and at temperature 0 the most probable token is taken anyway"
                yield inactive(c, f"eval.{name}", why, "eval.temperature")


def batching(c: Context) -> Iterator[Problem]:
    if not has_trainer(c.config.placement):
        return  # modes.py says so
    packed = c.config.trainer.batching == "packed"
    needed, other = ("max_tokens_per_gpu", "micro_batch_size") if packed else ("micro_batch_size", "max_tokens_per_gpu")
    kind, key = c.config.trainer.batching, f"trainer.{needed}"
    if c.value(key) is None:
        summary = f"{kind} batching needs {needed}"
        yield c.problem("missing-value", summary, key, "trainer.batching", hint=f"set {key} to {8192 if packed else 4}")
    if c.value(f"trainer.{other}") is not None:
        yield inactive(c, f"trainer.{other}", f"has no part in {kind} batching", "trainer.batching")


def token_cap(c: Context) -> Iterator[Problem]:
    """A cap that a prompt alone can exceed is a cap in name only."""
    r, t, cp = c.config.rollout, c.config.trainer, c.config.placement.trainer.cp
    if t.batching == "packed" and t.max_tokens_per_gpu is not None and t.max_tokens_per_gpu * cp <= r.max_prompt_tokens:
        several = f" (times cp {cp})" if cp > 1 else ""
        summary = (
            f"micro-batches of {t.max_tokens_per_gpu} tokens{several} cannot hold a prompt of {r.max_prompt_tokens} "
            "and a response: long samples would all exceed the cap"
        )
        longest = r.max_prompt_tokens + r.max_response_tokens
        part = 2 * -(-longest // (2 * cp)) if cp > 1 else longest  # two equal chunks
        hint = f"set trainer.max_tokens_per_gpu to {part} or more, which holds the longest sample"
        keys = ("trainer.max_tokens_per_gpu", "rollout.max_prompt_tokens")
        yield c.problem("token-cap-too-small", summary, *keys, hint=hint)


def tracking(c: Context) -> Iterator[Problem]:
    if not c.config.tracking.enabled:
        for key in ("tracking.uri", "tracking.experiment"):
            if c.changed(key):
                yield inactive(c, key, "names a place for results that are not logged", "tracking.enabled")
        return
    uri = c.config.tracking.uri
    scheme = re.match(r"([A-Za-z][\w+.-]*):", uri or "")
    if uri is not None and scheme is not None and not _is_store(scheme.group(1)):
        known = "sqlite:///mlflow.db, http://host:5000 or null"
        is_host = re.fullmatch(r"[\w.-]+:\d+(/.*)?", uri)
        hint = f"set tracking.uri to http://{uri}" if is_host else f"set tracking.uri to an address such as {known}"
        yield c.problem("tracking-uri", f"MLflow has no store for `{uri}`", "tracking.uri", hint=hint)


def _is_store(scheme: str) -> bool:
    """Whether MLflow, or a plug-in of it that is installed, knows such addresses."""
    if scheme.split("+")[0] in MLFLOW_SCHEMES:
        return True
    return any(plugin.name == scheme for plugin in importlib.metadata.entry_points(group="mlflow.tracking_store"))


def stop_texts(c: Context) -> Iterator[Problem]:
    if "" in c.config.rollout.stop:
        summary = "an empty stop text ends every sample at its first token"
        yield c.problem("empty-stop-text", summary, "rollout.stop", hint="remove the empty text from rollout.stop")


def inactive(c: Context, key: str, why: str, because: str) -> Problem:
    """`key` has no effect with the value of `because`; its default does."""
    hint = f"set {key} to {show(all_keys()[key].default)}"
    return c.problem("inactive-key", f"{key} {why}", key, because, hint=hint)


RULES = (
    groups_per_step,
    learning_rate,
    warmup,
    stop_after,
    evaluation,
    sampling,
    batching,
    token_cap,
    tracking,
    stop_texts,
)
