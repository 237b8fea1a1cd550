"""The fakes keep the same promises as the real backends."""

from __future__ import annotations

import sys
from pathlib import Path

from rlrun.backends.base import Rendezvous
from rlrun.backends.fake import FakeEngine, FakeTrainer
from rlrun.plan.build import load_plan

sys.path.insert(0, str(Path(__file__).parent))
from contract import check_rollout_backend, check_train_backend


def test_the_fake_engine_keeps_the_contract():
    engine = FakeEngine(positions=32, vocab_size=13)
    trainer = FakeTrainer(load_plan(["+experiment=quickstart"]), engine)
    trainer.publish([], version=3)
    check_rollout_backend(engine, (1, 5, 1), version=3)


def test_the_fake_trainer_keeps_the_contract(tmp_path):
    trainer = FakeTrainer(load_plan(["+experiment=quickstart"]), FakeEngine(positions=32, vocab_size=13))
    assert trainer.start(Rendezvous(0, 1, "", 0), "").reports
    check_train_backend(trainer, str(tmp_path / "saved"), vocab_size=13)
