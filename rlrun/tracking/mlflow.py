"""MLflow: the only module that imports it.

Parameters are chunked under MLflow's limits (100 a call, 6000 characters a value); the resolved configuration is
an artifact. Metrics go through log_batch. A resumed run continues its own MLflow run, and parameters that changed
are recorded as tags, because MLflow refuses to change a parameter.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.errors import RunFailed
from rlrun.tracking.base import RunStatus

PARAMS_PER_CALL = 100
METRICS_PER_CALL = 1000
PARAM_VALUE_CHARS = 6000
TAG_VALUE_CHARS = 5000


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of a nested mapping as dotted key and text; lists are one value."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, name + ".")
        else:
            yield name, str(value)


def _open(uri: str, experiment: str) -> tuple[Any, str]:
    # A new sqlite file would print each of its migrations; importing mlflow configures its logger, so both sides.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        return client, found.experiment_id
    # Beside a local database, not in whatever folder the command was typed.
    location = None
    if uri.startswith("sqlite:///"):
        location = (Path(uri.removeprefix("sqlite:///")).absolute().parent / "mlartifacts").as_uri()
    try:
        return client, client.create_experiment(experiment, artifact_location=location)
    except MlflowException:  # another process was first
        found = client.get_experiment_by_name(experiment)
        if found is None:
            raise
        return client, found.experiment_id


class MlflowTracker:
    """One MLflow run. Raises RunFailed("mlflow", ...) when the store cannot be reached at the start."""

    def __init__(
        self,
        *,
        uri: str,
        experiment: str,
        run_name: str,
        config: Mapping[str, Any],
        tags: Mapping[str, str],
        run_id: str | None = None,
        parent_run_id: str | None = None,
    ):
        self._pending: list[Any] = []
        self._complained = False
        try:
            self._client, experiment_id = _open(uri, experiment)
            if run_id is None:
                all_tags = dict(tags)
                if parent_run_id is not None:
                    all_tags["mlflow.parentRunId"] = parent_run_id
                run = self._client.create_run(experiment_id, run_name=run_name, tags=all_tags)
                self.run_id: str = run.info.run_id
            else:
                self.run_id = run_id
                self._client.update_run(run_id, status="RUNNING")
            self._log_config(config)
        except RunFailed:
            raise
        except Exception as e:
            raise RunFailed(
                "mlflow", f"cannot open {uri}: {e}", "check tracking.uri, or set tracking.enabled=false"
            ) from e

    def _log_config(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        known = self._client.get_run(self.run_id).data.params
        values = {key: value[:PARAM_VALUE_CHARS] for key, value in flatten(config)}
        new = [Param(key, value) for key, value in values.items() if key not in known]
        for start in range(0, len(new), PARAMS_PER_CALL):
            self._client.log_batch(self.run_id, params=new[start : start + PARAMS_PER_CALL])
        for key, value in values.items():
            if key in known and known[key] != value:
                self._client.set_tag(self.run_id, f"rlrun.changed.{key}", f"{known[key]} -> {value}"[:TAG_VALUE_CHARS])
        self._client.log_dict(self.run_id, dict(config), "config.yaml")

    def log(self, step: int, values: dict[str, float]) -> None:
        """Sends the step's metrics. A store that does not answer costs no training: they are kept and sent with the
        next step's, and stderr says so once."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._pending += [Metric(k, float(v), now, step) for k, v in values.items()]
        try:
            self._flush()
        except Exception as e:
            if not self._complained:
                print(f"warning: MLflow does not take metrics ({e}); they are kept and sent later", file=sys.stderr)
            self._complained = True

    def _flush(self) -> None:
        while self._pending:
            self._client.log_batch(self.run_id, metrics=self._pending[:METRICS_PER_CALL])
            del self._pending[:METRICS_PER_CALL]
        self._complained = False

    def tag(self, key: str, value: str) -> None:
        self._client.set_tag(self.run_id, key, value[:TAG_VALUE_CHARS])

    def close(self, status: RunStatus) -> None:
        self._flush()
        self._client.set_terminated(self.run_id, status=status)


class MlflowParent:
    """The parent run of a sweep: its children are the points."""

    def __init__(self, uri: str, experiment: str, run_name: str, tags: Mapping[str, str]):
        self._client, experiment_id = _open(uri, experiment)
        self.run_id: str = self._client.create_run(experiment_id, run_name=run_name, tags=dict(tags)).info.run_id

    def close(self, status: RunStatus) -> None:
        self._client.set_terminated(self.run_id, status=status)
