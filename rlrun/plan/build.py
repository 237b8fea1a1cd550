"""RunConfig -> RunPlan: every decision of a run, taken once. Also the plan as JSON, for the run folder and resume."""

from __future__ import annotations

import dataclasses
import json
import os
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from rlrun.config.keys import all_keys
from rlrun.config.schema import RunConfig
from rlrun.errors import RlrunError
from rlrun.plan import placement
from rlrun.plan.checks import run_checks
from rlrun.plan.context import Context, absolute
from rlrun.plan.identity import config_hash, resolved
from rlrun.plan.memory import estimate
from rlrun.plan.rules.algo import optimizer_steps
from rlrun.plan.rules.memory import layout_of
from rlrun.plan.types import (
    AlgoPlan,
    BatchPlan,
    ChangedValue,
    CheckpointPlan,
    DataPlan,
    DatasetPlan,
    EnginePlan,
    EvalPlan,
    MemoryPlan,
    ModelPlan,
    OptimizerPlan,
    RewardPlan,
    RolloutPlan,
    RouterPlan,
    RunPlan,
    SyncPlan,
    TimeoutsPlan,
    TrackingPlan,
    TrainPlan,
)

if TYPE_CHECKING:
    from rlrun.config.load import Loaded

CONTEXT_MARGIN = 8
"""Tokens an engine allows beyond prompt and response; SGLang refuses a request that fills its context exactly."""

BYTES = {"float32": 4, "bfloat16": 2}


def load_plan(overrides: Sequence[str], config_dir: str | None = None) -> RunPlan:
    """Words such as `+experiment=quickstart algo.lr=1e-6` -> the plan. Raises RlrunError with every problem."""
    from rlrun.config.load import load

    return plan_of(load(overrides, config_dir))


def replan(plan: RunPlan, overrides: Sequence[str], origin: str = "plan.json") -> RunPlan:
    """The plan of a run that exists with new `key=value` words, for resume. Raises RlrunError with every problem."""
    from rlrun.config.load import reload

    return plan_of(reload(plan.resolved_config, origin, overrides, plan.experiment))


def plan_of(loaded: Loaded) -> RunPlan:
    """The plan of a configuration that was read. Raises RlrunError with its problems and those of the rules."""
    context = Context(loaded.config, loaded.origins)
    problems = [*loaded.problems, *run_checks(context)]
    if problems:
        raise RlrunError(problems)
    return build_plan(context, loaded.experiment)


def build_plan(c: Context, experiment: str | None = None) -> RunPlan:
    """The plan of a configuration in which `run_checks` found nothing."""
    config = c.config
    assert isinstance(config, RunConfig)
    p = config.placement
    model = _model(c)
    engines, router = _engines(config)
    return RunPlan(
        name=config.name,
        experiment=experiment,
        seed=config.seed,
        num_steps=config.num_steps,
        stop_after=config.stop_after,
        output_dir=absolute(config.output_dir),
        config_hash=config_hash(c, model.dtype),
        device=p.device,
        num_nodes=p.num_nodes,
        gpus_per_node=p.gpus_per_node,
        placement_mode=p.mode,
        slots=placement.slots(p),
        max_staleness=config.async_mode.max_staleness,
        model=model,
        train=_train(config),
        algo=_algo(c),
        batch=_batch(config),
        engines=engines,
        router=router,
        rollout=_rollout(config),
        data=DataPlan(_dataset(c, "train"), _dataset(c, "eval"), config.data.shuffle, config.data.system_prompt),  # type: ignore[arg-type]
        reward=RewardPlan(config.reward.function, dict(config.reward.arguments), float(config.reward.timeout_s)),
        sync=_sync(config, model),
        eval=_eval(config),
        checkpoint=CheckpointPlan(**config.checkpoint.model_dump()),
        tracking=_tracking(config),
        timeouts=TimeoutsPlan(**{k: float(v) for k, v in config.timeouts.model_dump().items()}),
        changed=_changed(c),
        resolved_config=resolved(c),
        memory=_memory(c),
    )


def _model(c: Context) -> ModelPlan:
    m, device = c.config.model, c.config.placement.device
    dtype = {"cpu": "float32", "cuda": "bfloat16"}[device] if m.dtype == "auto" else m.dtype
    path = None if m.init == "random" else c.model_dir or m.path
    return ModelPlan(m.name, c.spec, m.init, path, m.alphabet, dtype)


def _train(config: RunConfig) -> TrainPlan:
    p, t = config.placement, config.trainer
    return TrainPlan(
        slots=placement.trainer_slots(p),
        tp=p.trainer.tp,
        pp=p.trainer.pp,
        cp=p.trainer.cp,
        dp=placement.data_parallel(p),
        backend={"cpu": "gloo", "cuda": "nccl"}[p.device],
        threads=p.trainer_threads,
        batching=t.batching,
        max_tokens_per_gpu=t.max_tokens_per_gpu,
        micro_batch_size=t.micro_batch_size,
        recompute=t.recompute,
        sequence_parallel=t.sequence_parallel,
        distributed_optimizer=t.distributed_optimizer,
        ep=p.trainer.ep,
    )


def _algo(c: Context) -> AlgoPlan:
    a = c.config.algo
    optimizer = OptimizerPlan(
        lr=float(a.lr),
        min_lr=float(a.min_lr),
        schedule=a.lr_schedule,
        warmup_steps=a.lr_warmup_steps,
        total_steps=optimizer_steps(c),
        weight_decay=float(a.weight_decay),
        beta1=float(a.adam_beta1),
        beta2=float(a.adam_beta2),
        eps=float(a.adam_eps),
        clip_grad=float(a.clip_grad),
    )
    return AlgoPlan(
        name=a.name,
        advantage=a.advantage,
        normalize_by_std=a.normalize_by_std,
        clip_low=float(a.clip_low),
        clip_high=float(a.clip_high),
        loss_aggregation=a.loss_aggregation,
        kl_coef=float(a.kl_coef),
        kl_estimator=a.kl_estimator,
        uses_reference=a.kl_coef > 0,
        optimizer=optimizer,
    )


def _batch(config: RunConfig) -> BatchPlan:
    a, dp = config.algo, placement.data_parallel(config.placement)
    samples_per_step = a.groups_per_step * a.group_size
    return BatchPlan(
        prompts_per_rollout=a.prompts_per_rollout,
        group_size=a.group_size,
        samples_per_rollout=a.prompts_per_rollout * a.group_size,
        groups_per_step=a.groups_per_step,
        samples_per_step=samples_per_step,
        optimizer_steps_per_rollout=a.prompts_per_rollout // a.groups_per_step,
        samples_per_rank=-(-samples_per_step // dp),
    )


def _engines(config: RunConfig) -> tuple[tuple[EnginePlan, ...], RouterPlan | None]:
    p, r, s = config.placement, config.rollout, config.rollout.sglang
    slots = placement.engine_slots(p)
    engine_ports, router_port = placement.ports(r.port, len(slots)) if r.port is not None else ([], None)
    backend = (
        {"cpu": "torch_native", "cuda": "triton"}[p.device] if s.attention_backend == "auto" else s.attention_backend
    )
    engines = tuple(
        EnginePlan(
            index=index,
            slots=own,
            tp=len(own),
            port=engine_ports[index][0] if engine_ports else None,
            dist_port=engine_ports[index][1] if engine_ports else None,
            threads=p.engine_threads,
            attention_backend=backend,
            mem_fraction_static=s.mem_fraction_static,
            max_total_tokens=s.max_total_tokens,
            max_running_requests=s.max_running_requests,
            cuda_graph=s.cuda_graph,
            log_level=s.log_level,
            seeded=r.seeded,
            context_length=r.max_prompt_tokens + r.max_response_tokens + CONTEXT_MARGIN,
        )
        for index, own in enumerate(slots)
    )
    return engines, RouterPlan(r.router_policy, router_port) if len(engines) > 1 else None


def _rollout(config: RunConfig) -> RolloutPlan:
    r = config.rollout
    return RolloutPlan(
        max_prompt_tokens=r.max_prompt_tokens,
        max_response_tokens=r.max_response_tokens,
        temperature=float(r.temperature),
        stop=tuple(r.stop),
        seeded=r.seeded,
        request_timeout_s=float(r.request_timeout_s),
        max_retries=r.max_retries,
        max_concurrent_groups=r.max_concurrent_groups,
    )


def _dataset(c: Context, name: str) -> DatasetPlan | None:
    dataset, rows = getattr(c.config.data, name), c.rows(name)
    if dataset is None or rows is None:
        return None
    return DatasetPlan(absolute(dataset.path), dataset.prompt_key, dataset.label_key, rows.num_rows)


def _sync(config: RunConfig, model: ModelPlan) -> SyncPlan:
    s = config.weight_sync
    backend = {
        ("tensor", "cpu"): "value",
        ("tensor", "cuda"): "cuda_ipc",
        ("distributed", "cpu"): "gloo",
        ("distributed", "cuda"): "nccl",
    }[s.transport, config.placement.device]
    total = model.spec.num_parameters * BYTES[model.dtype]
    return SyncPlan(s.transport, backend, s.bucket_mb * 2**20, s.verify, total)


def _eval(config: RunConfig) -> EvalPlan | None:
    e = config.eval
    if e.interval is None:
        return None
    return EvalPlan(e.interval, e.before_train, e.samples_per_prompt, float(e.temperature), e.max_prompts)


def _tracking(config: RunConfig) -> TrackingPlan | None:
    t = config.tracking
    if not t.enabled:
        return None
    default = "sqlite:///" + os.path.join(absolute(config.output_dir), "mlflow.db")
    return TrackingPlan(t.uri or default, t.experiment or config.name)


def _memory(c: Context) -> MemoryPlan | None:
    layout = layout_of(c)
    return estimate(layout) if layout is not None else None


def _changed(c: Context) -> tuple[ChangedValue, ...]:
    """Values away from the schema's defaults; keys that have none always have to be written, and do not count."""
    changed = []
    for key in all_keys().values():
        if (
            key.section is not None
            or key.required
            or (key.path.startswith("model.architecture.") and key.default is None)  # a family's own sizes
            or (key.path.startswith("data.eval.") and c.config.data.eval is None)
        ):
            continue
        value = c.value(key.path)
        if value != key.default:
            changed.append(ChangedValue(key.path, key.default, value, c.origins.of(key.path)))
    return tuple(changed)


def plan_to_json(plan: RunPlan) -> str:
    """The plan as JSON text; `plan_from_json` gives an equal plan back."""
    return json.dumps(dataclasses.asdict(plan), indent=1, ensure_ascii=False) + "\n"


def plan_from_json(text: str) -> RunPlan:
    """Raises ValueError, KeyError or TypeError when the text is not a plan of this version."""
    return _rebuild(RunPlan, json.loads(text))


def _rebuild(kind: Any, value: Any) -> Any:
    """JSON values -> dataclasses and tuples, as the annotations say."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _rebuild(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = [a for a in arguments if a is not type(None)]
        return None if value is None else _rebuild(inner[0], value)
    if origin is tuple:
        return tuple(_rebuild(arguments[0], item) for item in value)
    return value
