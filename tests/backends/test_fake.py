"""The fakes keep the same promises as the real backends."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.backends.base import Rendezvous
from rlrun.backends.fake import FakeEngine, FakeTrainer
from rlrun.errors import RunFailed
from rlrun.plan.build import load_plan

sys.path.insert(0, str(Path(__file__).parent))
from contract import check_critic, check_rollout_backend, check_train_backend


def test_the_fake_engine_keeps_the_contract():
    engine = FakeEngine(positions=32, vocab_size=13)
    trainer = FakeTrainer(load_plan(["+experiment=quickstart"]), engine)
    trainer.publish([], version=3)
    check_rollout_backend(engine, (1, 5, 1), version=3)


def test_the_fake_trainer_keeps_the_contract(tmp_path):
    trainer = FakeTrainer(load_plan(["+experiment=quickstart"]), FakeEngine(positions=32, vocab_size=13))
    assert trainer.start(Rendezvous(0, 1, "", 0), "").reports
    check_train_backend(trainer, str(tmp_path / "saved"), vocab_size=13)


def test_the_fake_critic_keeps_the_contract(tmp_path):
    plan = load_plan(["+experiment=quickstart", "algo=ppo", "critic.lr=0.3"])
    trainer = FakeTrainer(plan, FakeEngine(positions=32, vocab_size=13))
    check_critic(trainer, str(tmp_path / "saved"), vocab_size=13)


def test_a_checkpoint_without_a_critic_is_refused_by_a_plan_with_one(tmp_path):
    plan = load_plan(["+experiment=quickstart", "algo=ppo"])
    trainer = FakeTrainer(replace(plan, critic=None), FakeEngine(positions=32, vocab_size=13))
    trainer.save(str(tmp_path))
    with pytest.raises(RunFailed, match="saved without a critic"):
        FakeTrainer(plan, FakeEngine(positions=32, vocab_size=13)).load(str(tmp_path))
