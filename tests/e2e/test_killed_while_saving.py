"""A run as a user starts it, killed with -9 while it saves: it goes on from the checkpoint before, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import assert_nothing_left, metrics, run, start, summary, wait_for

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

STEPS = 5
ARGS = [
    "+experiment=quickstart_sft",
    f"num_steps={STEPS}",
    "checkpoint.interval=1",
    "checkpoint.keep=1",
    "checkpoint.keep_every=3",
    "checkpoint.hf_interval=2",
    "checkpoint.async_save=true",
    "checkpoint.digest=true",
]


def digest(run_dir, step):
    return json.loads((run_dir / "checkpoints" / f"step_{step:06d}" / "digest.json").read_text())


def learned(run_dir):
    return [{k: v for k, v in row.items() if not k.startswith(("perf/", "memory/"))} for row in metrics(run_dir)]


def test_killed_while_it_saves_a_run_goes_on_from_the_checkpoint_before(tmp_path):
    whole = run([*ARGS, f"output_dir={tmp_path / 'whole'}"], tmp_path / "whole")
    assert whole.process.returncode == 0, whole.text[-3000:]
    expected = whole.run_dir()
    assert sorted(os.listdir(expected / "checkpoints")) == ["step_000003", "step_000005"]
    assert sorted(os.listdir(expected / "hf_steps")) == ["step_000002", "step_000004"]
    assert {p.name for p in (expected / "hf_steps" / "step_000004").iterdir()} == {
        p.name for p in (expected / "hf").iterdir()
    }
    rows = metrics(expected)
    assert all("perf/save_s" in row for row in rows)
    assert ["perf/save_background_s" in row for row in rows] == [False, True, True, True, True]

    killed = start([*ARGS, f"output_dir={tmp_path / 'killed'}"], tmp_path / "killed")
    stop_in_the_making(killed, step=4)
    os.killpg(killed.process.pid, signal.SIGKILL)
    killed.wait(30)
    assert_nothing_left(killed)
    run_dir = killed.run_dir()
    names = os.listdir(run_dir / "checkpoints")
    assert "step_000003" in names
    assert "step_000004" not in names
    assert any(name.startswith(".step_000004") for name in names), "no debris: it was not killed while it saved"

    resumed = run(["resume", str(run_dir)], tmp_path / "killed", log_name="resumed.log")
    assert resumed.process.returncode == 0, resumed.text[-3000:]
    assert "restored step 3" in resumed.text
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["step_000003", "step_000005"]
    assert digest(run_dir, STEPS) == digest(expected, STEPS) != digest(run_dir, 3)
    assert learned(run_dir) == learned(expected)
    assert summary(resumed)["status"] == "finished"


def stop_in_the_making(command, step):
    """Stops the driver at a moment when the checkpoint of `step` is begun and not complete: only it completes one."""

    def caught():
        run_dir = command.run_dir()
        begun = [] if run_dir is None else list((run_dir / "checkpoints").glob(f".step_{step:06d}.*.tmp"))
        if not begun:
            return False
        os.kill(command.process.pid, signal.SIGSTOP)
        assert begun[0].exists(), "it was complete before the driver was stopped"
        return True

    wait_for(caught, command, 200, f"checkpoint of step {step} in the making", poll_s=0.0)
