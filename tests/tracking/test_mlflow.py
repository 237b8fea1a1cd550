"""The MLflow tracker against a real sqlite store."""

from __future__ import annotations

import pytest

from rlrun.errors import RunFailed
from rlrun.tracking.mlflow import MlflowParent, MlflowTracker, flatten


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def tracker(uri, config, **kwargs):
    return MlflowTracker(
        uri=uri, experiment="e", run_name="r", config=config, tags={"rlrun.config_hash": "abc"}, **kwargs
    )


def test_more_than_a_hundred_params_long_values_and_metrics_arrive(uri):
    config = {"a": {"b": 1, "list": [1, 2]}, "long": "x" * 7000, **{f"key{i}": i for i in range(250)}}
    t = tracker(uri, config)
    t.log(1, {"train/loss": 0.5})
    t.log(2, {"train/loss": 0.25})
    t.close("FINISHED")
    run = t._client.get_run(t.run_id)
    assert run.info.status == "FINISHED"
    assert len(run.data.params) == 253
    assert run.data.params["a.b"] == "1"
    assert run.data.params["a.list"] == "[1, 2]"
    assert len(run.data.params["long"]) == 6000
    assert run.data.tags["rlrun.config_hash"] == "abc"
    assert [(m.step, m.value) for m in t._client.get_metric_history(t.run_id, "train/loss")] == [(1, 0.5), (2, 0.25)]
    assert [f.path for f in t._client.list_artifacts(t.run_id)] == ["config.yaml"]


def test_a_resumed_run_keeps_its_id_and_notes_changed_params(uri):
    first = tracker(uri, {"lr": 1.0, "same": 2})
    first.close("KILLED")
    again = tracker(uri, {"lr": 0.5, "same": 2, "new": 3}, run_id=first.run_id)
    run = again._client.get_run(first.run_id)
    assert again.run_id == first.run_id
    assert run.info.status == "RUNNING"
    assert run.data.params == {"lr": "1.0", "same": "2", "new": "3"}
    assert run.data.tags["rlrun.changed.lr"] == "1.0 -> 0.5"
    again.close("FAILED")
    assert again._client.get_run(first.run_id).info.status == "FAILED"


def test_a_sweep_has_one_parent_and_its_points_as_children(uri):
    parent = MlflowParent(uri, "e", "sweep", {"rlrun.points": "2"})
    children = [tracker(uri, {"lr": lr}, parent_run_id=parent.run_id) for lr in (1, 2)]
    for child in children:
        child.close("FINISHED")
    parent.close("FINISHED")
    found = parent._client.search_runs(
        [parent._client.get_experiment_by_name("e").experiment_id],
        filter_string=f"tags.mlflow.parentRunId = '{parent.run_id}'",
    )
    assert {run.info.run_id for run in found} == {child.run_id for child in children}


def test_an_unreachable_store_is_a_clear_failure(tmp_path):
    (tmp_path / "not-a-folder").write_text("")
    with pytest.raises(RunFailed, match=r"mlflow: cannot open .*tracking\.uri"):
        tracker(f"sqlite:///{tmp_path}/not-a-folder/mlflow.db", {})


def test_flatten_gives_dotted_leaves():
    assert dict(flatten({"a": {"b": {"c": 1}}, "d": [1], "e": {}, "f": None})) == {
        "a.b.c": "1",
        "d": "[1]",
        "e": "{}",
        "f": "None",
    }


def test_metrics_that_the_store_refuses_are_sent_with_the_next_step(uri, monkeypatch, capsys):
    t = tracker(uri, {})
    real = t._client.log_batch

    def down(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(t._client, "log_batch", down)
    t.log(1, {"train/loss": 1.0})
    t.log(2, {"train/loss": 2.0})
    assert capsys.readouterr().err.count("MLflow does not take metrics (no route)") == 1
    monkeypatch.setattr(t._client, "log_batch", real)
    t.log(3, {"train/loss": 3.0})
    assert [(m.step, m.value) for m in t._client.get_metric_history(t.run_id, "train/loss")] == [(1, 1), (2, 2), (3, 3)]
    t.close("FINISHED")
