"""RunConfig -> RunPlan: every decision of a run, taken once. Also the plan as JSON, for the run folder and resume."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from rlrun.config.keys import Key, all_keys, find_key, open_sections
from rlrun.config.schema import RunConfig
from rlrun.config.sections.base import plain
from rlrun.config.twin import ORIGIN as TWIN_ORIGIN
from rlrun.errors import RlrunError
from rlrun.plan import placement
from rlrun.plan.checks import run_checks
from rlrun.plan.context import Context, absolute
from rlrun.plan.decide.critic import critic_plan
from rlrun.plan.decide.model import model_plan
from rlrun.plan.decide.operations import data_plan, eval_plan, reward_plan, tracking_plan
from rlrun.plan.decide.rollout import (
    async_plan,
    deployment_plan,
    engines_plan,
    rollout_plan,
    routers_plan,
    sync_plan,
)
from rlrun.plan.decide.sampling import sampling_plan
from rlrun.plan.decide.time import time_plan
from rlrun.plan.decide.train import algo_plan, batch_plan, train_plan
from rlrun.plan.groups import POLICY
from rlrun.plan.identity import config_hash, resolved
from rlrun.plan.memory import estimate
from rlrun.plan.rules.memory import layout_of
from rlrun.plan.types import ChangedValue, CheckpointPlan, MemoryPlan, RunPlan, TimeoutsPlan

if TYPE_CHECKING:
    from rlrun.config.load import Loaded


def load_plan(overrides: Sequence[str], config_dir: str | None = None) -> RunPlan:
    """Words such as `+experiment=quickstart algo.lr=1e-6` -> the plan. Raises RlrunError with every problem."""
    from rlrun.config.load import load

    return plan_of(load(overrides, config_dir))


def replan(plan: RunPlan, overrides: Sequence[str], origin: str = "plan.json") -> RunPlan:
    """The plan of a run that exists with new `key=value` words, for resume. Raises RlrunError with every problem."""
    from rlrun.config.load import reload

    return plan_of(reload(plan.resolved_config, origin, overrides, plan.experiment, plan.twin))


def plan_of(loaded: Loaded) -> RunPlan:
    """The plan of a configuration that was read. Raises RlrunError with its problems and those of the rules."""
    context = Context(loaded.config, loaded.origins)
    problems = [*loaded.problems, *run_checks(context)]
    if problems:
        raise RlrunError(problems)
    return build_plan(context, loaded.experiment, loaded.twin)


def build_plan(c: Context, experiment: str | None = None, twin: str | None = None) -> RunPlan:
    """The plan of a configuration in which `run_checks` found nothing."""
    config = c.config
    assert isinstance(config, RunConfig)
    p = config.placement
    model = model_plan(c)
    engines, routers = engines_plan(c), routers_plan(c)
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
        train=train_plan(config, model.spec),
        algo=algo_plan(c),
        batch=batch_plan(config),
        engines=engines,
        router=routers.get(POLICY),
        rollout=rollout_plan(config),
        data=data_plan(c),
        reward=reward_plan(config),
        sync=sync_plan(config, model),
        eval=eval_plan(config),
        checkpoint=CheckpointPlan(**config.checkpoint.model_dump()),
        tracking=tracking_plan(config),
        timeouts=TimeoutsPlan(**{k: float(v) for k, v in config.timeouts.model_dump().items()}),
        changed=_changed(c),
        resolved_config=resolved(c),
        memory=_memory(c),
        sampling=sampling_plan(config),
        critic=critic_plan(c),
        deployment=deployment_plan(c, engines, routers),
        async_mode=async_plan(config),
        time=time_plan(c),
        twin=twin,
    )


def _memory(c: Context) -> MemoryPlan | None:
    layout = layout_of(c)
    return estimate(layout) if layout is not None else None


def _changed(c: Context) -> tuple[ChangedValue, ...]:
    """Values away from the schema's defaults, and all that a twin has changed. Keys without a default always have to be
    written, and do not count."""
    changed = []
    for key in all_keys().values():
        if (
            key.section is not None
            or key.required
            or (key.path.startswith("model.architecture.") and key.default is None)  # a family's own sizes
            or (key.path.startswith("data.eval.") and c.config.data.eval is None)
            or (key.path.startswith("reward.") and c.config.reward is None)
        ):
            continue
        value, origin = c.value(key.path), c.origins.of(key.path)
        if value != key.default or origin.startswith(TWIN_ORIGIN):  # a twin also goes back to defaults
            changed.append(ChangedValue(key.path, plain(key.default), plain(value), origin))
    for key in _arguments(c):
        value = c.value(key.path)
        if value != key.default:
            changed.append(ChangedValue(key.path, key.default, value, c.origins.of(key.path)))
    return tuple(changed)


def _arguments(c: Context) -> Iterator[Key]:
    """The arguments of engines that were written."""
    for section in open_sections():
        for name in c.value(section).engine_arguments:
            key = find_key(f"{section}.{name}")
            assert key is not None, f"{section}.{name} was not checked"
            yield key


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
    if origin is tuple and Ellipsis not in arguments:
        return tuple(_rebuild(inner, item) for inner, item in zip(arguments, value, strict=True))
    if origin is tuple:
        return tuple(_rebuild(arguments[0], item) for item in value)
    return value
