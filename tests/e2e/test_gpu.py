"""The quickstart on NVIDIA GPUs: bfloat16, NCCL, CUDA IPC, Triton attention. Seen on one and two H200."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from processes import assert_nothing_left, metrics, run, summary

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MEAN_DIFF = 0.02
"""Largest mean |trainer - engine| log-prob of a step in bfloat16; 0.0013 was seen."""


def gpus() -> int:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return 0
    return listed.count("GPU ")


def check(command, steps):
    assert command.process.returncode == 0, command.text[-3000:]
    rows = [row for row in metrics(command.run_dir()) if "train/loss" in row]
    assert len(rows) == steps
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in rows) < MEAN_DIFF
    assert_nothing_left(command)


@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
def test_one_gpu_colocated_learns(tmp_path):
    words = ["+experiment=quickstart", "placement=gpu_1", "num_steps=20", "tracking.enabled=false"]
    command = run([*words, f"output_dir={tmp_path}"], tmp_path, deadline_s=500)
    check(command, 20)
    found = summary(command)
    assert found["last_reward_mean"] > 2 * found["first_reward_mean"]


@pytest.mark.skipif(gpus() < 1, reason="needs a GPU")
def test_ppo_with_its_critic_on_the_same_gpu(tmp_path):
    words = ["+experiment=quickstart", "placement=gpu_1", "algo=ppo", "num_steps=8", "tracking.enabled=false"]
    command = run([*words, f"output_dir={tmp_path}"], tmp_path, deadline_s=500)
    check(command, 8)
    rows = [row for row in metrics(command.run_dir()) if "train/value_loss" in row]
    assert len(rows) == 8
    assert rows[-1]["train/value_loss"] < rows[0]["train/value_loss"]


@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
def test_two_gpus_disaggregated_over_nccl_pass_the_canary(tmp_path):
    words = ["+experiment=quickstart", "placement=gpu_1", "placement.mode=disaggregated", "placement.gpus_per_node=2"]
    more = ["weight_sync.transport=distributed", "weight_sync.verify=canary", "num_steps=6", "tracking.enabled=false"]
    check(run([*words, *more, f"output_dir={tmp_path}"], tmp_path, deadline_s=500), 6)
