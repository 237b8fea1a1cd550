"""What the run reads from this machine besides the model: data files, the reward function, ports."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
import sys
from collections.abc import Iterator

from rlrun.config.partial import Unreadable
from rlrun.errors import Problem, RlrunError, Where
from rlrun.plan.batch import first_draw
from rlrun.plan.context import Context, absolute, dataset_keys
from rlrun.plan.dataset import foreign_characters
from rlrun.plan.groups import has_engines
from rlrun.plan.placement import ports
from rlrun.plan.ports import is_free
from rlrun.plan.rules.served import models_of

HOST = "127.0.0.1"
LAST_PORT = 65535


def train_data(c: Context) -> Iterator[Problem]:
    yield from _dataset(c, "train")
    rows = c.rows("train")
    need, wanted = first_draw(c.config), c.config.algo.prompts_per_rollout
    if rows is not None and rows.error is None and rows.num_rows < need:
        summary = f"{rows.num_rows} rows are too few for one rollout of {need} prompts"
        keys = ["data.train.path", "algo.prompts_per_rollout"]
        most = rows.num_rows * wanted // need
        hint = f"set algo.prompts_per_rollout to at most {most}" if rows.num_rows else "fill the file"
        if need != wanted:
            keys.append("dynamic_sampling.over_sampling")
            if rows.num_rows >= wanted:
                hint = (
                    f"set dynamic_sampling.over_sampling to at most {math.floor(100 * rows.num_rows / wanted) / 100:g}"
                )
        yield c.problem("dataset-too-small", summary, *keys, hint=hint)


def eval_data(c: Context) -> Iterator[Problem]:
    yield from _dataset(c, "eval")
    rows = c.rows("eval")
    if rows is not None and rows.error is None and rows.num_rows == 0:
        yield c.problem("dataset-too-small", "there is no row to evaluate on", "data.eval.path", hint="fill the file")
    most = c.config.eval.max_prompts
    if most is not None and rows is not None and 0 < rows.num_rows < most and c.config.eval.interval is not None:
        summary = f"the first {most} prompts are more than the {rows.num_rows} there are"
        hint = f"set eval.max_prompts to null, or to at most {rows.num_rows}"
        yield c.problem("inactive-key", summary, "eval.max_prompts", "data.eval.path", hint=hint)


def _dataset(c: Context, name: str) -> Iterator[Problem]:
    """file-not-found, malformed-jsonl and unknown-character of one file."""
    rows, key = c.rows(name), f"data.{name}.path"
    if rows is None:
        return
    written = c.value(key)
    if rows.error is not None:
        summary = f"cannot read {written}: {rows.error}"
        yield c.problem("file-not-found", summary, key, hint=_nearby(absolute(written), key))
        return
    if rows.bad:
        more = f" (and {rows.num_bad - len(rows.bad)} more)" if rows.num_bad > len(rows.bad) else ""
        first = f"row {rows.bad[0].reason}" if rows.num_bad == 1 else f"{rows.num_bad} rows cannot be used"
        where = tuple(Where(f"{_short(written)}:{row.line}", row.reason) for row in rows.bad)
        named = (c.origins.where(key, written),)
        hint = f"correct line {', '.join(str(row.line) for row in rows.bad)}{more} of that file"
        if any("has no field" in row.reason for row in rows.bad):
            other = "response_key" if dataset_keys(c.config, name).response is not None else "label_key"
            hint += f", or set data.{name}.prompt_key and data.{name}.{other} to its fields"
        yield Problem("malformed-jsonl", f"{_short(written)}: {first}", where + named, hint)
    if rows.foreign:
        characters = "".join(sorted({character for row in rows.foreign for character in row.reason}))
        where = tuple(Where(f"{_short(written)}:{row.line}", repr(row.reason)) for row in rows.foreign)
        texts = "prompts or responses" if dataset_keys(c.config, name).response is not None else "prompts"
        summary = f"{texts} contain {characters!r}, which model.alphabet does not have"
        named = (c.origins.where("model.alphabet", c.value("model.alphabet")),)
        yield Problem(
            "unknown-character", summary, where + named, "add the characters to model.alphabet, or change the file"
        )


def system_prompt(c: Context) -> Iterator[Problem]:
    m, text = c.config.model, c.config.data.system_prompt
    if m.init == "random" and m.alphabet and text:
        unknown = foreign_characters(text, m.alphabet)
        if unknown:
            summary = f"the system prompt contains {unknown!r}, which model.alphabet does not have"
            keys = ("data.system_prompt", "model.alphabet")
            yield c.problem("unknown-character", summary, *keys, hint="set data.system_prompt to null")


def stop_texts(c: Context) -> Iterator[Problem]:
    """A stop text that a character-level model cannot write would stop nothing."""
    m = c.config.model
    unknown = foreign_characters("".join(c.config.rollout.stop), m.alphabet or "")
    if m.init == "random" and m.alphabet and unknown:
        summary = f"rollout.stop contains {unknown!r}, which model.alphabet does not have"
        keys = ("rollout.stop", "model.alphabet")
        yield c.problem("unknown-character", summary, *keys, hint="remove that text from rollout.stop")


def output_dir(c: Context) -> Iterator[Problem]:
    """The nearest folder that exists has to take the run folder."""
    summary = unusable(os.path.join(absolute(c.config.output_dir), c.config.name), "the run folder")
    if summary is not None:
        hint = "set output_dir to a folder you can write to"
        yield c.problem("output-dir-unusable", summary, "output_dir", hint=hint)


def unusable(path: str, what: str) -> str | None:
    """Why a folder of this path cannot be made, or None."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        return f"{_short(path)} is a file, and {what} would lie below it"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"the folder {_short(path)} may not be written to"
    return None


def unexpanded(c: Context) -> Iterator[Problem]:
    """$NAME that the shell was meant to replace."""
    keys = ["output_dir", "model.path", "data.train.path", "data.eval.path", "tracking.uri"]
    keys.append("weight_sync.dir")
    with contextlib.suppress(Unreadable):
        keys += [f"rollout.models.{name}.path" for name in c.config.rollout.models]
    for key in keys:
        try:
            value = c.value(key)
        except Unreadable:
            continue
        variable = re.search(r"\$\{?([A-Za-z_]\w*)", value or "")
        if variable:
            summary = f"{key} contains {variable.group()}, and only the shell replaces that"
            hint = f"set {key} to '{value.replace(variable.group(), f'${{oc.env:{variable.group(1)}}}')}'"
            yield c.problem("unexpanded-variable", summary, key, hint=hint.replace("}}", "}"))


def reward(c: Context) -> Iterator[Problem]:
    """Imports the user's module for real: whatever it raises, the run would raise too."""
    from rlrun.agents.rewards import load_reward

    if c.config.reward is None:  # rules/sft.py says when there has to be one
        return
    function, arguments = c.config.reward.function, c.config.reward.arguments
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m rlrun` has it; the console script has not
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the plan
            load_reward(function, arguments, models=models_of(c))
    except RlrunError as e:
        for p in e.problems:
            key = "reward.arguments" if p.code == "reward-arguments" else "reward.function"
            yield c.problem(p.code, p.summary, key, hint=p.hint or "")
    except SystemExit as e:
        summary = f"cannot load reward {function}: the module ends the program (exit code {e.code})"
        hint = 'move what runs at import below `if __name__ == "__main__":`'
        yield c.problem("reward-not-importable", summary, "reward.function", hint=hint)


def free_ports(c: Context) -> Iterator[Problem]:
    """Consecutive ports from `rollout.port`: those of the engines, one more for each router."""
    first, external = c.config.rollout.port, c.config.placement.rollout.external
    engines = sum(group.num_engines for group in c.groups)
    if first is None or not has_engines(c.config.placement):
        return
    count = ports(first, c.groups, external)[2]
    if count == 0:
        summary = "rollout.port is where engines and routers of ours listen, and there are none"
        keys = ("rollout.port", "placement.rollout.external")
        yield c.problem("inactive-key", summary, *keys, hint="set rollout.port to null")
        return
    last = first + count - 1
    if last > LAST_PORT:
        summary = f"the {engines} engines need ports {first} to {last}, and ports end at {LAST_PORT}"
        hint = f"set rollout.port to {LAST_PORT + 1 - count} or less, or to null"
        yield c.problem("port-out-of-range", summary, "rollout.port", hint=hint)
        return
    taken = [port for port in range(first, last + 1) if not is_free(port, HOST)]
    if taken:
        free = next(
            (p for p in range(first + 1, LAST_PORT - count) if all(is_free(n, HOST) for n in range(p, p + count))),
            None,
        )
        hint = f"set rollout.port to {free}, or to null" if free is not None else "set rollout.port to null"
        summary = f"port {', '.join(map(str, taken))} of {first} to {last} is in use on this machine"
        yield c.problem("port-in-use", summary, "rollout.port", hint=hint)


def _short(path: str) -> str:
    """Relative to here when below, as an editor or terminal can open it."""
    full = absolute(path)
    relative = os.path.relpath(full)
    return full if relative.startswith("..") else relative


def _nearby(path: str, key: str) -> str:
    """A hint with the file that was probably meant."""
    folder = os.path.dirname(path)
    names = [n for n in os.listdir(folder) if n.endswith(".jsonl")] if os.path.isdir(folder) else []
    close = difflib.get_close_matches(os.path.basename(path), names, n=1)
    if close:
        return f"did you mean {key}={_short(os.path.join(folder, close[0]))}?"
    return f"set {key} to a JSONL file; relative paths begin at {os.getcwd()}"


RULES = (train_data, eval_data, system_prompt, stop_texts, output_dir, unexpanded, reward, free_ports)
