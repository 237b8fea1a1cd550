"""README's training commands and conversions, as a reader types them, with the real engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from processes import assert_nothing_left, metrics, run, summary
from readme import commands

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


def test_the_quickstart_learns(tmp_path):
    """What `make quickstart` runs: from scratch to at least 0.6, and three times where it began."""
    command = run(["+experiment=quickstart", f"output_dir={tmp_path}"], tmp_path, deadline_s=420)
    assert command.process.returncode == 0, command.text[-3000:]
    found = summary(command)
    assert found["last_reward_mean"] >= 0.6
    assert found["last_reward_mean"] >= 3 * found["first_reward_mean"]
    assert found["eval_reward_last"] >= 3 * max(found["eval_reward_first"], 0.05)
    assert found["wall_s"] <= 300
    assert max(row.get("train/train_rollout_logprob_abs_diff_max", 0) for row in metrics(command.run_dir())) < 1e-4
    assert_nothing_left(command)


def test_the_readmes_sweep_is_one_parent_with_a_child_for_each_point(tmp_path):
    (words,) = [words for words in commands() if words[:2] == ["rlrun", "-m"]]
    command = run([*words[1:], f"output_dir={tmp_path}"], tmp_path, deadline_s=420)
    assert command.process.returncode == 0, command.text[-3000:]
    assert "Sweep: 2 of 2 points finished" in command.text
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("quickstart").experiment_id])
    parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    children = [r for r in runs if "mlflow.parentRunId" in r.data.tags]
    assert len(parents) == 1
    assert {r.data.tags["mlflow.parentRunId"] for r in children} == {parents[0].info.run_id}
    assert len({r.data.params["algo.lr"] for r in children}) == 2
    assert {r.info.status for r in runs} == {"FINISHED"}
    assert_nothing_left(command)


def test_the_readmes_conversions_there_and_back(tmp_path):
    """On tiny models in folders of those names."""
    from safetensors.torch import load_file

    from rlrun.data.tiny_model import make_random_model
    from rlrun.plan.build import load_plan

    for folder, family in (("Qwen3-0.6B", "qwen3"), ("MiniMax-M2", "minimax_m2")):
        model = load_plan(["+experiment=quickstart", f"model=tiny_{family}"]).model
        make_random_model(str(tmp_path / folder), model.spec, model.alphabet, 1, "float32")
    asked = [words for words in commands() if words[:2] == ["rlrun", "convert"]]
    assert [words[2] for words in asked] == ["hf-to-megatron", "megatron-to-hf", "hf-to-hf"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    for words in asked:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"wrote {words[4].removeprefix('./')} in ")
        if "--verify" in words:
            assert "bit for bit" in done.stdout
            assert "verified: logits differ by" in done.stdout
    before, after = (load_file(tmp_path / f / "model.safetensors") for f in ("Qwen3-0.6B", "qwen3_again"))
    assert set(before) == set(after)
    assert all(before[name].equal(after[name]) for name in before)
    assert (tmp_path / "qwen3_again" / "tokenizer.json").is_file()
    bf16 = load_file(tmp_path / "MiniMax-M2-bf16" / "model.safetensors")
    assert {str(x.dtype) for name, x in bf16.items() if not name.endswith("bias")} == {"torch.bfloat16"}
