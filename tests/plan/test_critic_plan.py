"""What is decided about a critic, and where the plan shows it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pinned import PINNED

from rlrun.plan.build import load_plan, plan_from_json, plan_to_json
from rlrun.plan.layout import GIB
from rlrun.plan.render import render_plan

PPO = [*PINNED, "algo=ppo"]
write_critic = runpy.run_path(str(Path(__file__).parent / "cases" / "critic.py"))["critic"]


@pytest.fixture(scope="module")
def big():
    return load_plan(["+experiment=qwen3_ppo"])


def test_there_is_a_critic_with_gae_and_none_without():
    assert load_plan(PINNED).critic is None
    assert load_plan([*PINNED, "algo.advantage=gae"]).critic is not None


def test_its_learning_rate_is_ten_times_the_policys_unless_it_is_written():
    assert load_plan(PPO).critic.optimizer.lr == pytest.approx(0.01)
    assert load_plan([*PPO, "critic.lr=3e-4"]).critic.optimizer.lr == 3e-4
    assert load_plan([*PPO, "algo.lr=0.5"]).critic.optimizer.lr == 1.0  # a learning rate is at most 1


def test_the_policy_has_the_optimizer_steps_that_the_critic_leaves_it():
    plan = load_plan([*PPO, "critic.critic_only_steps=10", "algo.groups_per_step=8"])
    assert plan.critic.optimizer.total_steps == 30 * 2
    assert plan.algo.optimizer.total_steps == 20 * 2


def test_every_key_of_the_critic_reaches_the_plan():
    written = {
        "lr": 0.25, "min_lr": 0.125, "weight_decay": 0.5, "adam_beta1": 0.75, "adam_beta2": 0.625, "adam_eps": 0.375,
        "clip_grad": 3.5, "value_clip": 0.75, "critic_only_steps": 3, "lr_warmup_steps": 7, "lr_schedule": "cosine",
    }  # fmt: skip
    critic = load_plan([*PPO, *(f"critic.{key}={value}" for key, value in written.items())]).critic
    o = critic.optimizer
    assert (o.lr, o.min_lr, o.schedule, o.warmup_steps) == (0.25, 0.125, "cosine", 7)
    assert (o.weight_decay, o.beta1, o.beta2, o.eps, o.clip_grad) == (0.5, 0.75, 0.625, 0.375, 3.5)
    assert (critic.value_clip, critic.critic_only_steps) == (0.75, 3)
    assert load_plan([*PPO, "critic.value_clip=null"]).critic.value_clip is None


def test_a_plan_with_a_critic_survives_json(big):
    assert plan_from_json(plan_to_json(big)) == big


def test_the_plan_shows_the_critic_on_the_trainers_row_and_its_own(big):
    text = render_plan(big)
    assert "train    megatron  tp 2 x dp 4 + critic, nccl" in text
    row = "critic    lr 1e-05 constant, value clip 0.2, from the policy's weights, alone in the first 5 steps"
    assert row in text
    assert "loss      gae (lambda 1), whitened, clip 0.8..1.2" in text
    assert "critic" not in render_plan(load_plan(PINNED))


def test_the_critic_is_a_second_state_without_an_output_layer(big):
    """Qwen3-4B ties its embedding, so at pp 1 both networks have the same size, and the critic a head of 2,561 more."""
    for phase in big.memory.phases:
        terms = {term.name: term.num_bytes for term in phase.terms}
        policy = sum(terms[name] for name in ("weights", "gradients", "optimizer"))
        critic = sum(size for name, size in terms.items() if name.startswith("critic"))
        assert critic == pytest.approx(policy, rel=1e-4)
        assert critic > 16 * GIB


def test_a_critics_folder_counts_by_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_critic()(tmp_path)
    plan = load_plan([*PPO, "critic.path=./critic"])
    assert plan.critic.path == str(tmp_path / "critic")
    assert plan.config_hash != load_plan(PPO).config_hash
    (tmp_path / "critic").rename(tmp_path / "moved")
    moved = load_plan([*PPO, "critic.path=./moved"])
    assert moved.config_hash == plan.config_hash
    (tmp_path / "moved" / "model.safetensors").write_bytes(b"other")
    assert load_plan([*PPO, "critic.path=./moved"]).config_hash != plan.config_hash


def test_a_reward_model_without_an_output_layer_may_start_the_critic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_critic(tie_word_embeddings=True, max_position_embeddings=4096)(tmp_path)
    assert load_plan([*PPO, "critic.path=./critic"]).critic.path is not None
