"""What is loaded into an engine's model, without SGLang; `test_by_disk` has a real engine."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from rlrun.backends.sglang import weight_changes
from rlrun.weight_sync.delta import Snapshot
from rlrun.weight_sync.delta.file import write_frames

LATENT = [f"model.layers.0.self_attn.{part}.weight" for part in ("q_a_proj", "kv_a_proj_with_mqa")]
PACKED = "model.layers.0.mlp.experts.gate_up_proj"
SINGLE = "mtp.layers.0.mlp.experts.0.up_proj.weight"
NAMES = ["norm", *LATENT, PACKED, SINGLE]


class Model:
    """Keeps what it is given, call by call; `fails` makes the next call raise."""

    def __init__(self):
        self.calls: list[dict[str, torch.Tensor]] = []
        self.fails = False

    def load_weights(self, named):
        if self.fails:
            raise RuntimeError("shape mismatch")
        self.calls.append({name: tensor.clone() for name, tensor in named})


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """An engine of one rank."""
    alone = types.SimpleNamespace(rank_in_group=0, world_size=1)
    module = types.ModuleType("sglang.srt.distributed")
    module.get_tp_group = lambda: alone
    monkeypatch.setitem(sys.modules, "sglang.srt.distributed", module)
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return types.SimpleNamespace(model=Model())


@pytest.fixture
def files(tmp_path):
    """Files of: all weights as version 1, then changes of the latent pair's second half and of an expert, then none."""
    weights = {name: torch.zeros(8, 4) for name in NAMES}
    snapshot, paths = Snapshot(), []
    snapshot.take(weights.items(), 1)
    paths.append(str(tmp_path / "full"))
    write_frames(paths[-1], snapshot.full(1 << 20))
    for version, names in ((2, [LATENT[1], SINGLE]), (3, [])):
        for name in names:
            weights[name][0, 0] = version
        paths.append(str(tmp_path / f"to_{version}"))
        write_frames(paths[-1], snapshot.update(weights.items(), version, 1 << 20))
        snapshot.commit()
    return paths


def test_what_changed_is_loaded_with_what_belongs_to_it(runner, files):
    full, second, third = files
    assert weight_changes.update(runner, full) == (True, "Success")
    assert runner.rlrun_mirror.path == ""
    assert [sorted(call) for call in runner.model.calls] == [sorted(["norm", *LATENT, PACKED]), [SINGLE]]
    runner.model.calls.clear()
    assert weight_changes.update(runner, second) == (True, "Success")
    (call,) = runner.model.calls
    assert sorted(call) == sorted([*LATENT, SINGLE])
    assert call[LATENT[1]][0, 0] == call[SINGLE][0, 0] == 2
    assert call[LATENT[0]].abs().sum() == 0
    runner.model.calls.clear()
    assert weight_changes.update(runner, third) == (True, "Success")
    assert runner.model.calls == []


def test_a_refusal_says_why_and_loads_nothing(runner, files):
    done, why = weight_changes.update(runner, files[1])
    assert not done
    assert why.startswith("the update is refused: weights: version None is held; this update leads from 1 to 2")
    assert weight_changes.update(runner, "/nowhere/file")[1].startswith("the update is refused: [Errno 2]")
    assert runner.model.calls == []


def test_after_a_load_that_failed_only_all_weights_help(runner, files):
    full, second, _ = files
    weight_changes.update(runner, full)
    runner.model.fails = True
    done, why = weight_changes.update(runner, second)
    assert not done
    assert why == "rank 0 cannot load the changed weights: RuntimeError('shape mismatch'); they are mixed now"
    runner.model.fails = False
    assert weight_changes.update(runner, second)[0] is False
    assert weight_changes.update(runner, full)[0] is True


def test_other_updates_are_sglangs_own(runner):
    def original(runner, **request):
        return request

    request = {"named_tensors": [], "load_format": "flattened_bucket"}
    assert weight_changes._around_update(original, runner, **request) == request
