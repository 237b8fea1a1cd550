"""A plan or its problems as text for people, or as JSON for programs. Nothing is decided here."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from rlrun.config.origin import show
from rlrun.errors import Problem, RunFailed, Where
from rlrun.plan.limits import limits
from rlrun.plan.render_loss import loss_rows
from rlrun.plan.render_memory import memory_lines, memory_title
from rlrun.plan.render_placement import map_lines, map_rows
from rlrun.plan.render_time import time_lines, time_title
from rlrun.plan.types import (
    ChangedValue,
    CriticPlan,
    DatasetPlan,
    GroupPlan,
    OptimizerPlan,
    RewardPlan,
    RunPlan,
    SyncPlan,
)

WIDTH = 100
JSON_SCHEMA = 1
"""Raised when a field of the JSON output changes its name or meaning."""


class Style:
    """ANSI colours, only on a terminal and not with NO_COLOR."""

    def __init__(self, stream: TextIO | None):
        self._on = stream is not None and stream.isatty() and not os.environ.get("NO_COLOR")

    def bold(self, text: str) -> str:
        return self._paint(text, "1")

    def red(self, text: str) -> str:
        return self._paint(text, "1;31")

    def dim(self, text: str) -> str:
        return self._paint(text, "2")

    def cyan(self, text: str) -> str:
        return self._paint(text, "36")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._on else text


def render_problems(problems: Sequence[Problem], stream: TextIO | None = None) -> str:
    """All problems, then their number. `stream` is where the text will go; without one there is no colour."""
    style = Style(stream)
    count = f"Found {len(problems)} error{'s' if len(problems) != 1 else ''}. Nothing was started."
    return "\n\n".join([*(_problem(p, style) for p in problems), count])


def render_failure(error: RunFailed, stream: TextIO | None = None) -> str:
    """A run that broke, outside of a run folder."""
    return _problem(Problem("run-failed", f"{error.part}: {error.summary}", hint=error.hint), Style(stream))


def _problem(problem: Problem, style: Style) -> str:
    head = f"error[{problem.code}]: "
    first, *more = _wrap(problem.summary, len(head)) or [""]
    lines = [style.red(f"error[{problem.code}]") + f": {first}", *(f"  {line}" for line in more)]
    width = max((len(w.origin) for w in problem.where), default=0)
    lines += [_where(w, width, style) for w in problem.where]
    if problem.hint:
        first, *more = _wrap(problem.hint, len("hint: ")) or [""]
        lines += ["", style.cyan("hint:") + f" {first}", *(f"      {line}" for line in more)]
    return "\n".join(lines)


def _where(where: Where, width: int, style: Style) -> str:
    return f"  {style.dim(where.origin.ljust(width))}   {where.text}".rstrip()


def _wrap(text: str, first: int) -> list[str]:
    """Wraps at WIDTH and keeps the line breaks there are; long words, such as paths, stay whole."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        indent = " " * (first if not lines else 6)
        wrapped = textwrap.wrap(paragraph, WIDTH, initial_indent=indent, subsequent_indent=" " * 6,
                                break_long_words=False, break_on_hyphens=False)  # fmt: skip
        lines += [line.strip() for line in wrapped]
    return lines


def render_plan(plan: RunPlan, stream: TextIO | None = None) -> str:
    """The plan on one screen: what runs where, batch arithmetic, weights, and what differs from the defaults."""
    style = Style(stream)
    blocks = [style.bold(_title(plan)), _rows(_processes(plan), style)]
    if len(plan.slots) > 1:
        blocks.append(style.bold("Map") + "\n" + "\n".join(map_lines(plan, WIDTH)))
    blocks.append(_rows(_facts(plan), style))
    if plan.memory is not None:
        blocks.append(style.bold(memory_title(plan.memory)) + "\n" + "\n".join(memory_lines(plan.memory, WIDTH)))
    if plan.time is not None:
        blocks.append(style.bold(time_title(plan.time)) + "\n" + "\n".join(time_lines(plan, WIDTH)))
    if plan.changed:
        blocks.append(style.bold("Set away from the defaults") + "\n" + _changes(plan.changed, style))
    blocks.append(_counts(plan))
    return "\n\n".join(blocks)


def render_sweep(plans: Sequence[RunPlan], names: Sequence[str], stream: TextIO | None = None) -> str:
    """The first point in full, then each point's difference and hash."""
    style = Style(stream)
    width = max(len(name) for name in names)
    rows = [f"  {name:<{width}}   {style.dim(plan.config_hash)}" for name, plan in zip(names, plans, strict=True)]
    title = style.bold(f"Sweep of {_n(len(plans), 'point')}, one after the other")
    return "\n\n".join([render_plan(plans[0], stream), "\n".join([title, *rows])])


def _title(plan: RunPlan) -> str:
    name = plan.name if plan.twin is None else f"CPU twin of {plan.twin}"
    if plan.device == "cpu":
        return f"Plan: {name}, {_n(plan.num_nodes, 'node')} x {_n(plan.gpus_per_node, 'slot')} on CPU"
    return f"Plan: {name}, {_n(plan.num_nodes, 'node')} x {_n(plan.gpus_per_node, 'GPU')}"


def _processes(plan: RunPlan) -> list[tuple[str, str]]:
    """Which slots do what."""
    train, unit = plan.train, "slot" if plan.device == "cpu" else "GPU"
    rows = []
    if train.slots:
        sizes = [
            f"{name} {size}"
            for name, size in (
                ("tp", train.tp),
                ("pp", train.pp),
                ("cp", train.cp),
                ("ep", train.ep),
                ("etp", train.etp),
            )
            if size > 1
        ]
        if len(set(train.stage_layers)) > 1:
            sizes[sizes.index(f"pp {train.pp}")] += f" ({'+'.join(map(str, train.stage_layers))} layers)"
        critic = " + critic" if plan.critic is not None else ""
        shape = " x ".join([*sizes, f"dp {train.dp}"])
        rows.append((_slots(unit, train.slots), f"train    megatron  {shape}{critic}, {train.backend}"))
    rows += [(_slots(unit, group.slots), _group(plan, group, unit)) for group in plan.deployment.groups]
    rows += [("external", f"rollout  sglang    {e.model} at {e.url}, attached") for e in plan.deployment.external]
    return rows


def _group(plan: RunPlan, group: GroupPlan, unit: str) -> str:
    """The engines of a server group."""
    if group.type == "placeholder":
        return "hold     nothing   placeholder"
    first = plan.engines[group.engines[0]]
    parts = [("tp", first.tp), ("pp", first.pp), ("ep", first.ep), ("dp attention", first.dp_attention)]
    sizes = ", ".join(f"{name} {size}" for name, size in parts if size > 1)
    each = len(first.slots)
    size = f" x {_n(each, unit)} ({sizes})" if each > 1 else f" x 1 {unit}"
    span = f", {len(first.nodes)} nodes each" if len(first.nodes) > 1 else ""
    router = _router(plan, group.model)
    name = "rollout" if group.type == "regular" and group.model == "policy" else group.type
    model = "" if group.model == "policy" else f"{group.model}, "
    engines = _n(len(group.engines), "engine")
    return f"{name:<7}  sglang    {model}{engines}{size}{span}, {first.attention_backend} attention{router}"


def _router(plan: RunPlan, model: str) -> str:
    served = {m.name: m.router for m in plan.deployment.models}
    router = served.get(model, plan.router if model == "policy" else None)
    return f", sglang-router {router.policy}" if router else ""


def _facts(plan: RunPlan) -> list[tuple[str, str]]:
    return [
        ("model", _model(plan)),
        *(("run", f"not yet: {limit.what}") for limit in limits(plan)),
        ("step", _step(plan)),
        *((("groups", _groups(plan)),) if plan.sampling.drops or plan.sampling.sample_filter else ()),
        ("batch", _batch(plan)),
        ("mode", _mode(plan)),
        ("length", _length(plan)),
        *loss_rows(plan.algo),
        ("lr", _learning_rate(plan.algo.optimizer)),
        *(("critic", _critic(critic)) for critic in (plan.critic,) if critic is not None),
        *([("weights", _weights(plan, plan.sync))] if plan.sync is not None else []),
        ("seed", _seed(plan)),
        ("data", _dataset(plan.data.train)),
        *((("reward", _reward(plan.reward)),) if plan.reward is not None else ()),
        ("eval", _eval(plan)),
        ("track", f"mlflow experiment {plan.tracking.experiment}" if plan.tracking else "no MLflow"),
        ("save", _save(plan)),
        ("hash", plan.config_hash),
    ]


def _model(plan: RunPlan) -> str:
    source = "random weights" if plan.model.init == "random" else plan.model.path or ""
    return f"{plan.model.name}, {plan.model.spec.num_parameters:,} parameters, {plan.model.dtype}, {source}"


def _step(plan: RunPlan) -> str:
    b = plan.batch
    if plan.algo.supervised:
        rows = _n(b.prompts_per_rollout, "row")
        if b.optimizer_steps_per_rollout > 1:
            rows += f", {b.optimizer_steps_per_rollout} optimizer steps of {b.samples_per_step:,}"
        return f"{rows}, {b.samples_per_rank:,} per dp rank; {plan.num_steps:,} steps"
    samples = (
        f"{_n(b.prompts_per_rollout, 'prompt')} x {_n(b.group_size, 'sample')} = {b.samples_per_rollout:,} samples"
    )
    if b.variable:
        drawn = f"{_n(b.first_draw, 'prompt')} x {_n(b.group_size, 'sample')} = {b.samples_per_rollout:,}"
        which = "kept ones" if plan.sampling.drops else "all"
        share = f"at most {b.samples_per_rank:,} per dp rank"
        return f"{drawn}, {which} in one optimizer step, {share}; {plan.num_steps:,} steps"
    if plan.sampling.drops:
        samples += " kept"
    if b.optimizer_steps_per_rollout > 1:
        samples += f", {b.optimizer_steps_per_rollout} optimizer steps of {b.samples_per_step:,}"
    return f"{samples}, {b.samples_per_rank:,} per dp rank; {plan.num_steps:,} steps"


def _groups(plan: RunPlan) -> str:
    """From the groups that are generated to those that are learned from."""
    s, b = plan.sampling, plan.batch
    words = []
    if s.filter != "none":
        words.append("equal rewards dropped" if s.filter == "drop_zero_variance" else f"kept by {s.filter}")
    if s.overlong.handling == "drop":
        words.append("fewer than two whole samples dropped")
    if s.drops:
        kept = 1 if b.variable else b.prompts_per_rollout
        words.append(f"{b.first_draw:,} generated, at most {_n(s.max_refills, 'refill')} until {kept:,} kept")
        if not b.variable:
            words.append("surplus to next step" if s.surplus_staleness else "surplus dropped")
    if s.sample_filter is not None:
        words.append(f"samples kept by {s.sample_filter}")
    return "; ".join(words)


def _reward(r: RewardPlan) -> str:
    key = f", entry {r.key}" if r.key is not None else ""
    return f"{r.function}{key}{f', then {r.postprocess}' if r.postprocess is not None else ''}"


def _overlong(plan: RunPlan) -> str:
    o = plan.sampling.overlong
    return {
        "none": "",
        "mask": ", cut samples teach nothing",
        "penalize": f", reward up to {o.penalty:g} lower over the last {o.buffer_tokens:,}",
        "drop": ", cut samples dropped",
    }[o.handling]


def _batch(plan: RunPlan) -> str:
    t = plan.train
    cut = (
        f"packed up to {t.max_tokens_per_gpu:,} tokens"
        if t.batching == "packed"
        else f"padded, {t.micro_batch_size} samples"
    )
    extras = [word for word, on in (
        ("full recompute", t.recompute == "full"),
        ("sequence parallel", t.sequence_parallel),
        ("balanced by operations", t.attention_share > 0),
        ("optimizer on the host", t.optimizer_offload),
        ("optimizer state sharded over dp", t.distributed_optimizer and t.dp * t.cp > 1 and not t.optimizer_offload),
        (f"{t.grad_dtype} gradients", t.grad_dtype != "float32"),
        (f"{t.optimizer_dtype} moments", t.optimizer_dtype != "float32"),
    ) if on]  # fmt: skip
    return ", ".join([f"{cut} a micro-batch", *extras])


def _mode(plan: RunPlan) -> str:
    if plan.algo.supervised:
        return f"supervised, {plan.placement_mode}"
    away = [name for name, on in (("engines", plan.rollout.offload), ("trainer", plan.train.offload)) if on]
    leaves = f", {' and '.join(away)} off the GPU while the other works" if away else ""
    return f"{_pace(plan)}, {plan.placement_mode}{leaves}"


def _pace(plan: RunPlan) -> str:
    a = plan.async_mode
    if a.name != "fully_async":
        return f"{'synchronous' if a.name == 'sync' else 'one step ahead'} (max_staleness {plan.max_staleness})"
    every = f", weights every {_n(a.weight_sync_interval, 'step')}" if a.weight_sync_interval > 1 else ""
    partial = " and continue" if a.partial_rollout else ""
    flight = f"{_n(plan.rollout.max_concurrent_groups, 'group')} in flight"
    return f"fully async (max_staleness {plan.max_staleness}), {flight}, pause {a.pause_mode}{partial}{every}"


def _length(plan: RunPlan) -> str:
    r = plan.rollout
    seeded = ", seeded" if r.seeded else ""
    lengths = f"prompt up to {r.max_prompt_tokens:,}, response up to {r.max_response_tokens:,} tokens"
    if plan.algo.supervised:
        return lengths
    return f"{lengths}{_overlong(plan)}, temperature {r.temperature:g}{seeded}"


def _critic(critic: CriticPlan) -> str:
    start = "the policy's weights" if critic.path is None else _path(critic.path)
    clip = f"value clip {critic.value_clip:g}" if critic.value_clip is not None else "no value clip"
    alone = f", alone in the first {_n(critic.critic_only_steps, 'step')}" if critic.critic_only_steps else ""
    return f"lr {_schedule(critic.optimizer)}, {clip}, from {start}{alone}"


def _learning_rate(o: OptimizerPlan) -> str:
    return f"{_schedule(o)}, {_n(o.total_steps, 'optimizer step')} in all"


def _schedule(o: OptimizerPlan) -> str:
    floor = f" to {o.min_lr:g}" if o.schedule != "constant" else ""
    warmup = f", {_n(o.warmup_steps, 'warm-up step')}" if o.warmup_steps else ""
    return f"{o.lr:g} {o.schedule}{floor}{warmup}"


def _weights(plan: RunPlan, sync: SyncPlan) -> str:
    how = {"value": "by value", "cuda_ipc": "CUDA IPC", "gloo": "gloo", "nccl": "nccl"}[sync.backend]
    verify = ", canary checked" if sync.verify == "canary" else ""
    receivers = sum(engine.model == "policy" for engine in plan.engines)
    to = f", to each of {receivers} engines" if receivers > 1 else ""
    return f"{how}, {_size(sync.total_bytes)} {plan.model.dtype} each step{to}{verify}"


def _seed(plan: RunPlan) -> str:
    """Which seed acts where; see `rlrun.backends.megatron.device`, `rlrun.data.prompts`, `rlrun.agents.single_turn`."""
    uses = [f"trainer{' (+100 a pipeline stage)' if plan.train.pp > 1 else ''}"] if plan.train.slots else []
    uses = ["initial weights"] * (plan.model.init == "random") + uses + ["data order by epoch"] * plan.data.shuffle
    if plan.engines:
        uses.append("every request by step and sample" if plan.rollout.seeded else "engine i (+i)")
    return f"{plan.seed}: {', '.join(uses)}"


def _dataset(dataset: DatasetPlan) -> str:
    learned = f", responses in `{dataset.response_key}`" if dataset.response_key is not None else ""
    return f"{_path(dataset.path)}, {_n(dataset.num_rows, 'row')}{learned}"


def _eval(plan: RunPlan) -> str:
    if plan.eval is None or plan.data.eval is None:
        return "never"
    rows = min(plan.data.eval.num_rows, plan.eval.max_prompts or plan.data.eval.num_rows)
    before = "before training and " if plan.eval.before_train else ""
    samples = f" x {plan.eval.samples_per_prompt} samples" if plan.eval.samples_per_prompt > 1 else ""
    when = f"{before}every {_n(plan.eval.interval, 'step')}"
    cut = f", top_p {plan.eval.top_p:g}" if plan.eval.top_p < 1 else ""
    cut += f", top_k {plan.eval.top_k}" if plan.eval.top_k != -1 else ""
    return f"{when}, {_n(rows, 'prompt')}{samples}, temperature {plan.eval.temperature:g}{cut}"


def _save(plan: RunPlan) -> str:
    c = plan.checkpoint
    when = f"every {_n(c.interval, 'step')} and at the end, newest {c.keep} kept" if c.interval else "at the end"
    when += ", gathered on the host" if c.gather == "host" else ""
    stop = f"; stops after step {plan.stop_after}" if plan.stop_after else ""
    return f"{_path(os.path.join(plan.output_dir, plan.name))}, {when}{stop}"


def _changes(changed: Sequence[ChangedValue], style: Style) -> str:
    rows = [(c.key, shorten(_change(c)), c.origin) for c in changed]
    key_width = max(len(key) for key, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    return "\n".join(
        f"  {key:<{key_width}}  {value:<{value_width}}   {style.dim(origin)}" for key, value, origin in rows
    )


def _change(c: ChangedValue) -> str:
    """A twin may have gone back to the default."""
    return f"{show(c.default)} -> {show(c.value)}" if c.value != c.default else show(c.value)


def _counts(plan: RunPlan) -> str:
    workers, engines = _n(len(plan.train.slots), "train worker"), _n(len(plan.engines), "engine")
    unit = "slots" if plan.device == "cpu" else "GPUs"
    return (
        f"{workers}, {engines}, {len(plan.slots)} of {plan.num_nodes * plan.gpus_per_node} {unit}. Nothing was started."
    )


def _rows(rows: Sequence[tuple[str, str]], style: Style) -> str:
    width = max(8, *(len(name) for name, _ in rows))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows)


def _slots(unit: str, slots: Sequence[int]) -> str:
    first, last = min(slots), max(slots)
    return f"{unit} {first}" if first == last else f"{unit} {first}-{last}"


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _size(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1000:.1f} kB"


def shorten(text: str, most: int = 30) -> str:
    """At most so many characters, with dots when something was cut."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _path(path: str) -> str:
    """Relative to here when it lies below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def plan_document(plan: RunPlan) -> dict[str, Any]:
    """`rlrun plan --json`: the fields of RunPlan under `plan`, the cells of the map node by node, and no problems."""
    return {"schema": JSON_SCHEMA, "plan": dataclasses.asdict(plan), "map": map_rows(plan), "problems": []}


def problems_document(problems: Sequence[Problem]) -> dict[str, Any]:
    """`rlrun plan --json` of a configuration that is wrong: no plan, and the fields of every Problem."""
    return {"schema": JSON_SCHEMA, "plan": None, "map": None, "problems": [dataclasses.asdict(p) for p in problems]}
