"""The whole loop as a user starts it: Ray, Megatron and SGLang on CPU, and what happens when parts of it die.

The layouts run the same seeded steps as one rank does, and are then killed in different ways, because starting the
engines is what costs time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import SMALL, assert_nothing_left, metrics, run, start, summary, wait_for_step

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

STEPS, HALF = 20, 10
PARITY = 1e-4


def args(output_dir, *more):
    return [*SMALL, f"num_steps={STEPS}", f"checkpoint.interval={HALF}", f"output_dir={output_dir}", *more]


def mlflow_run(command):
    from mlflow.tracking import MlflowClient

    found = summary(command)
    return MlflowClient(tracking_uri=found["mlflow_uri"]).get_run(found["mlflow_run_id"])


def losses(rows):
    return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


def digest(run_dir, step):
    return json.loads((run_dir / "checkpoints" / f"step_{step:06d}" / "digest.json").read_text())


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run on one rank and one engine."""
    out = tmp_path_factory.mktemp("straight")
    command = run(args(out), out)
    assert command.process.returncode == 0, command.text[-3000:]
    return command


def test_a_run_finishes_says_so_and_leaves_nothing_behind(straight):
    found = summary(straight)
    assert found["status"] == "finished"
    assert found["steps"] == STEPS
    assert Path(found["checkpoint"]).is_dir()
    assert (Path(found["hf_checkpoint"]) / "model.safetensors").exists()
    assert "Finished: quickstart, step 20 of 20" in straight.text
    assert "mlflow ui --backend-store-uri" in straight.text
    assert_nothing_left(straight)
    tracked = mlflow_run(straight)
    assert tracked.info.status == "FINISHED"
    assert tracked.data.tags["rlrun.config_hash"] == found["config_hash"]
    assert tracked.data.metrics["rollout/reward_mean"] == metrics(straight.run_dir())[-1]["rollout/reward_mean"]


def test_engine_and_trainer_agree_on_every_token_of_every_step(straight):
    rows = metrics(straight.run_dir())
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    worst = max(row["train/train_rollout_logprob_abs_diff_max"] for row in rows)
    assert 0 < worst < PARITY


def test_stopped_and_resumed_is_the_same_run_bit_for_bit(straight, tmp_path):
    stopped = run(args(tmp_path, f"stop_after={HALF}"), tmp_path)
    assert stopped.process.returncode == 0, stopped.text[-3000:]
    assert summary(stopped)["status"] == "stopped"
    run_dir = stopped.run_dir()
    assert digest(run_dir, HALF) == digest(straight.run_dir(), HALF)
    before = json.loads((run_dir / "checkpoints" / f"step_{HALF:06d}" / "state.json").read_text())
    whole = json.loads((straight.run_dir() / "checkpoints" / f"step_{HALF:06d}" / "state.json").read_text())
    assert {k: v for k, v in before.items() if k != "mlflow_run_id"} == {
        k: v for k, v in whole.items() if k != "mlflow_run_id"
    }
    resumed = run(["resume", str(run_dir)], tmp_path, log_name="resumed.log")
    assert resumed.process.returncode == 0, resumed.text[-3000:]
    assert summary(resumed)["mlflow_run_id"] == before["mlflow_run_id"]
    assert losses(metrics(run_dir)) == losses(metrics(straight.run_dir()))
    assert digest(run_dir, STEPS) == digest(straight.run_dir(), STEPS)

    again = run(["resume", str(run_dir)], tmp_path, log_name="again.log")
    assert again.process.returncode == 2
    assert "error[run-finished]" in again.text
    assert not again.family()


def kill_trainer(command):
    pids = [pid for pid, line in command.family().items() if "ray::TrainerActor" in line]
    os.kill(max(pids), signal.SIGKILL)


def kill_engine(command):
    pids = [pid for pid, line in command.family().items() if "rlrun.backends.sglang.launch server" in line]
    os.kill(min(pids), signal.SIGKILL)


def interrupt(command):
    os.killpg(command.process.pid, signal.SIGINT)


@pytest.mark.parametrize(
    ("layout", "end", "code", "status", "words"),
    [
        (["placement=cpu_tp2"], kill_trainer, 1, "FAILED", "error[run-failed]: trainer rank"),
        (["placement=cpu_pp2"], kill_engine, 1, "FAILED", "error[run-failed]: engine 0"),
        (
            ["placement=cpu_dp2", "placement.rollout.gpus=2"],
            interrupt,
            130,
            "KILLED",
            "interrupted; every process of the run is ended",
        ),
    ],
    ids=["tp2-kill-trainer", "pp2-kill-engine", "dp2-two-engines-ctrl-c"],
)
def test_every_layout_has_the_same_losses_and_a_death_is_named(straight, tmp_path, layout, end, code, status, words):
    command = start(args(tmp_path, *layout, "num_steps=1000", "algo.lr_schedule=constant"), tmp_path)
    wait_for_step(command, STEPS)
    rows = metrics(command.run_dir())
    end(command)
    assert command.wait(60) == code, command.text[-3000:]
    assert_nothing_left(command)
    assert words in command.text
    assert "Traceback" not in command.text
    assert mlflow_run(command).info.status == status
    assert summary(command)["exit_code"] == code
    expected = losses(metrics(straight.run_dir()))
    found = losses(rows)
    for step in range(1, STEPS + 1):
        assert found[step] == pytest.approx(expected[step], abs=PARITY), f"loss of step {step}"
    assert max(row["train/train_rollout_logprob_abs_diff_max"] for row in rows) < PARITY
