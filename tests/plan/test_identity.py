from __future__ import annotations

import functools
import re
import shutil
import sys
from pathlib import Path

import pytest

from rlrun.config.shipped import recipe_file
from rlrun.plan.build import load_plan

sys.path.insert(0, str(Path(__file__).parent))
from pinned import PINNED


@functools.cache  # most tests compare with the same plan
def hash_of(*words: str) -> str:
    return load_plan([*PINNED, *words]).config_hash


def test_the_hash_is_twelve_hex_digits_and_repeatable():
    assert re.fullmatch(r"[0-9a-f]{12}", hash_of())
    assert hash_of() == load_plan(PINNED).config_hash


@pytest.mark.parametrize(
    "word",
    [
        "name=other",
        "output_dir=elsewhere",
        "stop_after=3",
        "placement=cpu_dp2",
        "trainer.max_tokens_per_gpu=2048",
        "tracking.enabled=false",
        "checkpoint.interval=7",
        "rollout.port=28200",
        "rollout.sglang.log_level=info",
        "rollout.sglang.schedule_policy=lpm",
        "trainer.megatron.deterministic_mode=true",
        "reward.timeout_s=5",
        "timeouts.save_s=5",
        "weight_sync.verify=canary",
        "model.name=other",
        "model.dtype=float32",
        "algo.lr=0.00100",
        "algo.kl_coef=0",
    ],
)
def test_what_does_not_change_learning_does_not_change_the_hash(word):
    assert hash_of(word) == hash_of()


@pytest.mark.parametrize(
    "word",
    [
        "seed=1",
        "num_steps=31",
        "algo.lr=0.002",
        "algo.kl_coef=0.1",
        "rollout.temperature=0.9",
        "rollout.seeded=true",
        "model.dtype=bfloat16",
        "data.shuffle=false",
        "data.eval.path=${recipes:quickstart/train.jsonl}",
        "reward.function=rlrun.agents.rewards:exact_match",
        "algo=dr_grpo",
        "trainer.megatron.apply_wd_to_qk_layernorm=true",
    ],
)
def test_what_changes_learning_changes_the_hash(word):
    assert hash_of(word) != hash_of()


def test_data_counts_by_content_wherever_it_lies(tmp_path, monkeypatch):
    copy = tmp_path / "copy.jsonl"
    shutil.copy(recipe_file("quickstart/train.jsonl"), copy)
    assert hash_of(f"data.train.path={copy}") == hash_of()
    monkeypatch.chdir(tmp_path)
    assert hash_of("data.train.path=copy.jsonl") == hash_of()
    copy.write_text(copy.read_text().replace("1", "2", 1))
    assert load_plan([*PINNED, f"data.train.path={copy}"]).config_hash != hash_of()


def test_in_a_section_about_resources_the_precision_of_training_still_counts():
    def big(*words: str) -> str:
        return load_plan(["+experiment=qwen3_grpo", *words]).config_hash

    hashes = {big(), big("trainer.grad_dtype=bfloat16"), big("trainer.optimizer_dtype=bfloat16")}
    assert len(hashes) == 3
    assert big("trainer.offload=true", "checkpoint.gather=host", "trainer.sequence_parallel=true") == big()
