"""Data, evaluation and tracking."""

from __future__ import annotations

import os

from rlrun.config.schema import RunConfig
from rlrun.plan.context import Context, absolute, dataset_keys
from rlrun.plan.parts.operations import DataPlan, DatasetPlan, EvalPlan, RewardPlan, TrackingPlan


def data_plan(c: Context) -> DataPlan:
    train = _dataset(c, "train")
    assert train is not None
    return DataPlan(train, _dataset(c, "eval"), c.config.data.shuffle, c.config.data.system_prompt)


def _dataset(c: Context, name: str) -> DatasetPlan | None:
    dataset, rows = getattr(c.config.data, name), c.rows(name)
    if dataset is None or rows is None:
        return None
    keys = dataset_keys(c.config, name)
    return DatasetPlan(absolute(dataset.path), keys.prompt, keys.label, rows.num_rows, keys.response)


def reward_plan(config: RunConfig) -> RewardPlan | None:
    r = config.reward
    if r is None:
        return None
    return RewardPlan(r.function, dict(r.arguments), float(r.timeout_s), r.key, r.postprocess)


def eval_plan(config: RunConfig) -> EvalPlan | None:
    e = config.eval
    if e.interval is None:
        return None
    temperature, top_p = float(e.temperature), float(e.top_p)
    return EvalPlan(e.interval, e.before_train, e.samples_per_prompt, temperature, e.max_prompts, top_p, e.top_k)


def tracking_plan(config: RunConfig) -> TrackingPlan | None:
    t = config.tracking
    if not t.enabled:
        return None
    default = "sqlite:///" + os.path.join(absolute(config.output_dir), "mlflow.db")
    return TrackingPlan(t.uri or default, t.experiment or config.name)
