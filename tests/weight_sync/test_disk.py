"""Checkpoints of every version in a shared folder, against a server that loads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlrun.errors import RunFailed
from rlrun.plan.types import SyncPlan
from rlrun.weight_sync.files import Files, clean, folder_of
from rlrun.weight_sync.senders import make_sender

WEIGHTS = [
    ("embed", torch.arange(12, dtype=torch.float32).reshape(4, 3)),
    ("norm", torch.ones(3, dtype=torch.bfloat16)),
    ("head", torch.arange(12, dtype=torch.float32).reshape(3, 4).T),  # not contiguous
]
NAMES = [name for name, _ in WEIGHTS]
PLAN = SyncPlan("disk", "disk", 1 << 20, "version", 0)


def write(named, target: str) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in named}
    os.makedirs(target)
    save_file(tensors, f"{target}/model.safetensors")


@pytest.fixture
def connect(tmp_path):
    opened = []

    def make(engines, write=write):
        files = Files(str(tmp_path / "run" / "weight_sync"), write)
        opened.append(make_sender(PLAN, [e.address(i) for i, e in enumerate(engines)], "cpu", 10, files))
        opened[-1].connect()
        return opened[-1]

    yield make
    for sender in opened:
        sender.close()


def folders(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "run" / "weight_sync"))


def test_every_engine_loads_each_version_and_the_last_one_alone_stays(fake_engine, connect, tmp_path):
    engines = [fake_engine(), fake_engine()]
    sender = connect(engines)
    for version in (1, 2):
        weights = [(name, tensor + version) for name, tensor in WEIGHTS]
        metrics = sender.send(iter(weights), version, NAMES)
        assert (metrics["bytes"], metrics["tensors"]) == (12 * 4 + 3 * 2 + 12 * 4, 3)
        for engine in engines:
            assert engine.version == str(version)
            assert sorted(engine.weights) == sorted(NAMES)
            for name, tensor in weights:
                assert engine.weights[name].dtype == tensor.dtype
                assert torch.equal(engine.weights[name], tensor)
            assert engine.updates[-1]["flush_cache"] is True
        assert folders(tmp_path) == [f"version_{version:06d}"]


def test_an_engine_that_refuses_is_named_and_the_version_before_stays(fake_engine, connect, tmp_path):
    engines = [fake_engine(), fake_engine(refuse_at=1)]
    sender = connect(engines)
    sender.send(WEIGHTS, 1, NAMES)
    with pytest.raises(RunFailed, match=r"engine 1: .*out of memory"):
        sender.send(WEIGHTS, 2, NAMES)
    assert folders(tmp_path) == ["version_000001", "version_000002"]
    assert engines[1].version == "1"


def test_a_version_that_does_not_come_back_fails(fake_engine, connect, tmp_path):
    sender = connect([fake_engine(reports="4")])
    with pytest.raises(RunFailed, match="reports weight version '4' after a sync of version 5"):
        sender.send(WEIGHTS, 5, NAMES)


@pytest.mark.parametrize(
    ("sent", "message"), [(WEIGHTS[:-1], "did not send head"), ([*WEIGHTS, WEIGHTS[0]], "sends embed twice")]
)
def test_wrong_names_reach_no_engine(fake_engine, connect, tmp_path, sent, message):
    engine = fake_engine()
    with pytest.raises(RunFailed, match=message):
        connect([engine]).send(sent, 1, NAMES)
    assert not engine.updates
    assert folders(tmp_path) == []


def test_what_cannot_be_written_reaches_no_engine(fake_engine, connect):
    def fails(named, target):
        raise RunFailed("export", f"writing {target} failed: no space left")

    engine = fake_engine()
    with pytest.raises(RunFailed, match="no space left"):
        connect([engine], fails).send(WEIGHTS, 1, NAMES)
    assert not engine.updates


def test_the_folder_is_empty_at_first_and_gone_at_the_end(fake_engine, connect, tmp_path):
    left = tmp_path / "run" / "weight_sync" / "version_000007"
    left.mkdir(parents=True)
    sender = connect([fake_engine()])
    assert not left.exists()
    sender.send(WEIGHTS, 8, NAMES)
    sender.close()
    assert os.listdir(tmp_path / "run") == []


def test_a_folder_that_cannot_be_made_is_named(fake_engine, connect, tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFailed, match=r"run/weight_sync cannot be made.*set weight_sync\.dir"):
        connect([fake_engine()])


def test_what_a_broken_run_leaves_is_taken_away(tmp_path):
    run_dir = tmp_path / "quick" / "20260101-120000"
    (run_dir / "weight_sync" / "version_000001").mkdir(parents=True)
    (run_dir / "logs").mkdir()
    clean(None, "quick", str(run_dir))
    clean(SyncPlan("tensor", "value", 1, "version", 0), "quick", str(run_dir))
    assert (run_dir / "weight_sync").is_dir()
    clean(SyncPlan("disk", "disk", 1, "version", 5, None, 10), "quick", str(run_dir))
    assert os.listdir(run_dir) == ["logs"]
    # Also where the folder of weights is that of the runs, nothing else goes.
    (tmp_path / "weight_sync-quick-20260101-120000").mkdir()
    clean(SyncPlan("disk", "disk", 1, "version", 5, str(tmp_path), 10), "quick", str(run_dir))
    assert os.listdir(tmp_path) == ["quick"]
    assert os.listdir(run_dir) == ["logs"]


def test_runs_that_share_a_folder_have_their_own_in_it():
    assert folder_of(PLAN, "quick", "/runs/quick/20260101-120000") == "/runs/quick/20260101-120000/weight_sync"
    shared = SyncPlan("disk", "disk", 1, "version", 0, "/shared")
    assert folder_of(shared, "quick", "/runs/quick/20260101-120000/") == "/shared/weight_sync-quick-20260101-120000"
