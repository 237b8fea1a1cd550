"""The rows of a plan that say what is learned, from what and how: a name and a text each."""

from __future__ import annotations

import os

from rlrun.plan.groups import POLICY
from rlrun.plan.limits import limits
from rlrun.plan.render_loss import loss_rows
from rlrun.plan.types import CriticPlan, DatasetPlan, OptimizerPlan, RewardPlan, RunPlan, ServedModelPlan, SyncPlan


def facts(plan: RunPlan) -> list[tuple[str, str]]:
    return [
        ("model", _model(plan)),
        *(("frozen", _frozen(model)) for model in plan.deployment.models),
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
    facts = f"{plan.model.name}, {plan.model.spec.num_parameters:,} parameters, {plan.model.dtype}, {source}"
    if plan.model.spec.linear_attention is None:
        return facts
    kernels = plan.train.gdn_backend
    return f"{facts}, delta nets by {'fla where installed, or torch' if kernels == 'auto' else kernels}"


def _frozen(model: ServedModelPlan) -> str:
    """A model that is served beside the policy."""
    path = _path(model.path) if os.path.isabs(model.path) else model.path
    if not model.engines:
        return f"{model.name}: {path}, on servers that run already"
    context = f", up to {model.context_length:,} tokens" if model.context_length else ""
    size = f", {_size(model.weight_bytes)}" if model.weight_bytes else ""
    return f"{model.name}: {path}{size or ','} {model.dtype}{context}"


def _step(plan: RunPlan) -> str:
    b = plan.batch
    if plan.algo.supervised:
        rows = count(b.prompts_per_rollout, "row")
        if b.optimizer_steps_per_rollout > 1:
            rows += f", {b.optimizer_steps_per_rollout} optimizer steps of {b.samples_per_step:,}"
        return f"{rows}, {b.samples_per_rank:,} per dp rank; {plan.num_steps:,} steps"
    samples = f"{count(b.prompts_per_rollout, 'prompt')} x {count(b.group_size, 'sample')}"
    samples += f" = {b.samples_per_rollout:,} samples"
    if b.variable:
        drawn = f"{count(b.first_draw, 'prompt')} x {count(b.group_size, 'sample')} = {b.samples_per_rollout:,}"
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
        words.append(f"{b.first_draw:,} generated, at most {count(s.max_refills, 'refill')} until {kept:,} kept")
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
    every = f", weights every {count(a.weight_sync_interval, 'step')}" if a.weight_sync_interval > 1 else ""
    partial = " and continue" if a.partial_rollout else ""
    flight = f"{count(plan.rollout.max_concurrent_groups, 'group')} in flight"
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
    alone = f", alone in the first {count(critic.critic_only_steps, 'step')}" if critic.critic_only_steps else ""
    return f"lr {_schedule(critic.optimizer)}, {clip}, from {start}{alone}"


def _learning_rate(o: OptimizerPlan) -> str:
    return f"{_schedule(o)}, {count(o.total_steps, 'optimizer step')} in all"


def _schedule(o: OptimizerPlan) -> str:
    floor = f" to {o.min_lr:g}" if o.schedule != "constant" else ""
    warmup = f", {count(o.warmup_steps, 'warm-up step')}" if o.warmup_steps else ""
    return f"{o.lr:g} {o.schedule}{floor}{warmup}"


HOW = {
    "value": "by value",
    "cuda_ipc": "CUDA IPC",
    "gloo": "gloo",
    "nccl": "nccl",
    "disk": "by disk",
    "delta": "changes by disk",
}


def _weights(plan: RunPlan, sync: SyncPlan) -> str:
    how = HOW[sync.backend]
    verify = ", canary checked" if sync.verify == "canary" else ""
    receivers = sum(e.model == POLICY for e in plan.engines) + sum(e.model == POLICY for e in plan.deployment.external)
    to = f", to each of {receivers} engines" if receivers > 1 else ""
    of = "of " if sync.backend == "delta" else ""
    return f"{how}, {of}{_size(sync.total_bytes)} {plan.model.dtype} each step{to}{_through(plan, sync)}{verify}"


def _through(plan: RunPlan, sync: SyncPlan) -> str:
    if not sync.disk_bytes:
        return ""
    folder = os.path.join(sync.directory or os.path.join(plan.output_dir, plan.name), "")
    copies = f", a copy of {_size(sync.engine_bytes)} on the trainer's host and for each engine" * bool(sync.host_bytes)
    return f", through {_path(folder)} (up to {_size(sync.disk_bytes)} there){copies}"


def _seed(plan: RunPlan) -> str:
    """Which seed acts where; see `rlrun.backends.megatron.device`, `rlrun.data.prompts`, `rlrun.agents.single_turn`."""
    uses = [f"trainer{' (+100 a pipeline stage)' if plan.train.pp > 1 else ''}"] if plan.train.slots else []
    uses = ["initial weights"] * (plan.model.init == "random") + uses + ["data order by epoch"] * plan.data.shuffle
    if plan.rollout.seeded:
        uses.append("every request by step and sample")
    elif plan.engines:
        uses.append("engine i (+i)")
    return f"{plan.seed}: {', '.join(uses)}"


def _dataset(dataset: DatasetPlan) -> str:
    learned = f", responses in `{dataset.response_key}`" if dataset.response_key is not None else ""
    return f"{_path(dataset.path)}, {count(dataset.num_rows, 'row')}{learned}"


def _eval(plan: RunPlan) -> str:
    if plan.eval is None or plan.data.eval is None:
        return "never"
    rows = min(plan.data.eval.num_rows, plan.eval.max_prompts or plan.data.eval.num_rows)
    before = "before training and " if plan.eval.before_train else ""
    samples = f" x {plan.eval.samples_per_prompt} samples" if plan.eval.samples_per_prompt > 1 else ""
    when = f"{before}every {count(plan.eval.interval, 'step')}"
    cut = f", top_p {plan.eval.top_p:g}" if plan.eval.top_p < 1 else ""
    cut += f", top_k {plan.eval.top_k}" if plan.eval.top_k != -1 else ""
    return f"{when}, {count(rows, 'prompt')}{samples}, temperature {plan.eval.temperature:g}{cut}"


def _save(plan: RunPlan) -> str:
    c = plan.checkpoint
    when = f"every {count(c.interval, 'step')} and at the end, newest {c.keep} kept" if c.interval else "at the end"
    when += f", those of every {count(c.keep_every, 'step')} for good" if c.keep_every else ""
    when += ", gathered on the host" if c.gather == "host" else ""
    when += ", written beside the training" if c.async_save else ""
    if c.hf_interval:
        kept = f", newest {c.hf_keep} kept" if c.hf_keep else ""
        when += f"; Hugging Face weights every {count(c.hf_interval, 'step')}{kept}"
    stop = f"; stops after step {plan.stop_after}" if plan.stop_after else ""
    return f"{_path(os.path.join(plan.output_dir, plan.name))}, {when}{stop}"


def count(number: int, noun: str) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1000:.1f} kB"


def _path(path: str) -> str:
    """Relative to here when it lies below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
