"""The real loop, batching, advantages and loss on the fake backends: it learns, repeats, resumes and refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.agents.single_turn import SingleTurn
from rlrun.backends.base import EngineAddress, Rendezvous
from rlrun.backends.fake import FakeEngine, FakeTrainer
from rlrun.data.prompts import PromptSource
from rlrun.data.types import Prompt, Sample
from rlrun.errors import RunFailed
from rlrun.plan.build import load_plan
from rlrun.runtime.checkpoint import CheckpointStore
from rlrun.runtime.gauge import Gauge
from rlrun.runtime.inputs import load_hooks
from rlrun.runtime.learn import Scores, credit
from rlrun.runtime.loop import Run, train
from rlrun.runtime.progress import Progress
from rlrun.runtime.supervise import Supervisor
from rlrun.runtime.turns import Turns
from rlrun.tracking.base import JsonlTracker, Trackers

PROMPT_TOKENS, RESPONSE_TOKENS, VOCAB = 3, 4, 13
BASE = [
    "+experiment=quickstart",
    "rollout.seeded=true",
    "algo.prompts_per_rollout=4",
    "algo.group_size=8",
    "algo.groups_per_step=2",
    "algo.lr=1.0",
    "algo.min_lr=0.0",
    "algo.lr_warmup_steps=0",
    "algo.lr_schedule=constant",
    "trainer.max_tokens_per_gpu=64",
    "eval.interval=5",
    "eval.before_train=true",
]


torch.set_num_threads(1)  # tables of a few numbers: threads only wait for each other


class Group1:
    """The driver's view of one fake rank."""

    def __init__(self, backend):
        self._backend = backend

    def logprobs(self, batches, model="policy"):
        return [self._backend.logprobs(batch, model) for batch in batches]

    def train_step(self, batches):
        return self._backend.train_step(batches[0])

    def values(self, batches):
        return [self._backend.values(batch) for batch in batches]

    def value_step(self, batches):
        return self._backend.value_step(batches[0])

    def publish(self, version):
        return self._backend.publish([EngineAddress(0, "http://fake", 1)], version)

    def digest(self):
        return [self._backend.digest()]

    def memory(self):
        return [self._backend.memory()]

    def park(self, keep_weights):
        return self._backend.park(keep_weights)

    def unpark(self):
        return self._backend.unpark()

    def save(self, directory):
        self._backend.save(directory)

    def begin_save(self, directory):
        self._backend.begin_save(directory)

    def save_done(self):
        return self._backend.save_done()

    def finish_save(self):
        return self._backend.finish_save()

    def export_hf(self, directory):
        self._backend.export_hf(directory)

    def load(self, directory):
        self._backend.load(directory)


def reward(prompt, text, label):
    """Share of the response's letters that are h (token 7), which the table can learn position by position."""
    return text.count("h") / RESPONSE_TOKENS


class Setup:
    def __init__(self, tmp_path, *overrides, run_dir=None):
        self.plan = load_plan([*BASE, *overrides])
        self.engine = FakeEngine(PROMPT_TOKENS + RESPONSE_TOKENS, VOCAB)
        self.trainer = Group1(FakeTrainer(self.plan, self.engine))
        self.trainer._backend.start(Rendezvous(0, 1, "", 0), "")
        self.run_dir = run_dir or tmp_path
        self.path = str(self.run_dir / "metrics.jsonl")
        self.store = CheckpointStore(str(self.run_dir), keep=3, digest=True)
        prompts = [Prompt(i, ({"role": "user", "content": str(i)},), (1, 3 + i, 1)) for i in range(6)]
        self.prompts = prompts

    def agent(self, stream, temperature, group_size):
        return SingleTurn(
            self.engine,
            reward,
            group_size=group_size,
            temperature=temperature,
            max_response_tokens=RESPONSE_TOKENS,
            stop=(),
            seed=self.plan.seed,
            stream=stream,
            max_concurrent_groups=8,
            reward_timeout_s=10.0,
        )

    def run(self, resume=False, guard=None):
        state = self.store.latest() if resume else None
        with asyncio.Runner() as runner:
            run = Run(
                plan=self.plan,
                trainer=self.trainer,
                agent=self.agent("train", 1.0, self.plan.batch.group_size),
                eval_agent=self.agent("eval", 0.0, 1),
                source=PromptSource(self.prompts, True, self.plan.seed),
                eval_prompts=self.prompts[:2],
                tracker=Trackers([JsonlTracker(self.path, state[1].step if state else None)]),
                store=self.store,
                progress=Progress(io.StringIO(), quiet=True),
                guard=Supervisor().guard,
                runner=runner,
                turns=Turns(self.plan, self.trainer, None),
                gauge=Gauge(self.trainer),
                hooks=load_hooks(self.plan),
            )
            if state:
                path, saved = state
                self.trainer.load(f"{path}/megatron")
                run.source.load_state_dict(saved.source)
                run.buffer = self.store.load_buffer(path)
                run.step, run.optimizer_steps, run.learned = saved.step, saved.optimizer_steps, True
            train(run)
        return run

    def rows(self):
        with open(self.path) as f:
            return [json.loads(line) for line in f]


def test_the_loop_learns(tmp_path):
    setup = Setup(tmp_path, "num_steps=20")
    run = setup.run()
    rows = setup.rows()
    rewards = [row["rollout/reward_mean"] for row in rows if row["step"] > 0]
    assert np.mean(rewards[:3]) < 0.3
    assert np.mean(rewards[-3:]) > 0.8
    assert rows[0].keys() >= {"eval/reward_mean"}
    assert rows[0]["step"] == 0
    assert [row["step"] for row in rows if "eval/reward_mean" in row] == [0, 5, 10, 15, 20]
    assert run.optimizer_steps == 40
    assert setup.engine.version == 20


def test_every_step_is_on_policy_and_the_engines_agree(tmp_path):
    setup = Setup(tmp_path, "num_steps=4")
    setup.run()
    for row in setup.rows()[1:]:
        assert row["rollout/staleness_max"] == 0
        assert row["train/train_rollout_logprob_abs_diff_max"] < 1e-5
        assert row["rollout/samples"] == 32


def test_stopped_and_resumed_equals_uninterrupted(tmp_path):
    whole = Setup(tmp_path / "a", "num_steps=6", "checkpoint.interval=3", run_dir=_made(tmp_path / "a"))
    whole.run()
    first = Setup(tmp_path / "b", "num_steps=6", "stop_after=3", run_dir=_made(tmp_path / "b"))
    first.run()
    second = Setup(tmp_path / "b", "num_steps=6", run_dir=tmp_path / "b")
    second.run(resume=True)
    assert _timeless(second.rows()) == _timeless(whole.rows())
    assert second.trainer.digest() == whole.trainer.digest()


def _made(path):
    path.mkdir()
    return path


def _timeless(rows):
    # eval at the stop is an extra: stop_after is an end, and evaluation runs at the end.
    return [{k: v for k, v in row.items() if not k.startswith(("perf/", "eval/"))} for row in rows]


PPO = ["algo=ppo", "critic.lr=0.2"]


def test_ppo_learns_and_its_critic_learns_to_foretell_the_returns(tmp_path):
    setup = Setup(tmp_path, "num_steps=20", *PPO)
    setup.run()
    rows = setup.rows()[1:]
    rewards = [row["rollout/reward_mean"] for row in rows]
    assert np.mean(rewards[:3]) < 0.3
    assert np.mean(rewards[-3:]) > 0.7
    assert rows[0]["train/value_mean"] == 0
    assert rows[-1]["train/value_mean"] > 0.5
    assert rows[-1]["train/value_mean"] == pytest.approx(rows[-1]["train/return_mean"], abs=0.15)
    assert all(row["perf/values_s"] >= 0 and row["perf/critic_s"] >= 0 for row in rows)


def test_the_policy_sits_out_the_steps_that_are_the_critics_alone(tmp_path):
    setup = Setup(tmp_path, "num_steps=3", *PPO, "critic.critic_only_steps=2")
    tables = []
    publish = setup.trainer.publish
    setup.trainer.publish = lambda version: tables.append(setup.trainer.digest()[0]) or publish(version)
    run = setup.run()
    rows = setup.rows()[1:]
    weights = [digest["weights"] for digest in tables]
    assert weights[0] == weights[1] == weights[2] != weights[3]
    assert len({digest["critic_weights"] for digest in tables}) == 4
    assert ["train/loss" in row for row in rows] == [False, False, True]
    assert [row["train/policy_version"] for row in rows] == [1, 2, 3]
    assert run.optimizer_steps == 2


def test_ppo_stopped_and_resumed_equals_uninterrupted(tmp_path):
    whole = Setup(tmp_path / "a", "num_steps=4", *PPO, run_dir=_made(tmp_path / "a"))
    whole.run()
    Setup(tmp_path / "b", "num_steps=4", *PPO, "stop_after=2", run_dir=_made(tmp_path / "b")).run()
    second = Setup(tmp_path / "b", "num_steps=4", *PPO, run_dir=tmp_path / "b")
    second.run(resume=True)
    assert _timeless(second.rows()) == _timeless(whole.rows())
    assert second.trainer.digest() == whole.trainer.digest()


@pytest.mark.parametrize("word", ["critic.lr=0.02", "critic.value_clip=0.001", "critic.critic_only_steps=1"])
def test_a_key_of_the_critic_changes_what_is_learned(tmp_path, word):
    digests = []
    for name, words in (("plain", []), ("changed", [word])):
        setup = Setup(tmp_path / name, "num_steps=3", *PPO, *words, run_dir=_made(tmp_path / name))
        setup.run()
        digests.append(setup.trainer.digest()[0])
    assert digests[0]["critic_weights"] != digests[1]["critic_weights"] or "only" in word
    assert digests[0]["weights"] != digests[1]["weights"]


def test_a_value_loss_that_is_not_a_number_ends_the_run(tmp_path):
    setup = Setup(tmp_path, "num_steps=3", *PPO)
    step = setup.trainer.value_step

    def breaks(batches):
        metrics = step(batches)
        metrics.values["value_loss"] = float("inf")
        return metrics

    setup.trainer.value_step = breaks
    with pytest.raises(RunFailed, match="the critic's value_loss is inf in step 1"):
        setup.run()


def test_the_kl_in_the_rewards_reaches_advantages_and_returns():
    """One sample of two tokens, by hand: what the policy is paid is what the critic has to foretell."""
    algo = load_plan([*BASE, "algo=ppo", "algo.whiten_advantages=false", "algo.kl_reward_coef=0.5"]).algo
    algo = replace(algo, loss=replace(algo.loss, kl_estimator="k1"))
    mask = np.array([0, 1, 1])
    sample = Sample(0, 0, np.array([1, 5, 6]), 1, mask, np.zeros(3), "stop", 0, reward=1.0)
    old, ref = np.array([0, -1.0, -2.0]), np.array([0, -1.5, -2.25])
    values = np.array([0, 0.5, 0.25], np.float32)
    given = credit(algo, [sample], np.zeros(1, int), Scores([old], [ref], None, [values]))
    paid = [-0.5 * 0.5, 1.0 - 0.5 * 0.25]
    np.testing.assert_allclose(given.returns[0], [0, paid[0] + paid[1], paid[1]], rtol=1e-6)
    np.testing.assert_allclose(given.advantages[0], given.returns[0] - values * mask, rtol=1e-6)


def test_a_run_that_learns_nothing_is_a_failure(tmp_path):
    setup = Setup(tmp_path, "num_steps=2")
    setup.agent = lambda *a: SingleTurn(
        setup.engine,
        lambda *_: 0.5,
        group_size=8,
        temperature=1.0,
        max_response_tokens=RESPONSE_TOKENS,
        stop=(),
        seed=1,
        stream="train",
        max_concurrent_groups=8,
        reward_timeout_s=10.0,
    )
    with pytest.raises(RunFailed, match="no step had a gradient"):
        setup.run()


def test_samples_of_another_version_are_refused(tmp_path):
    setup = Setup(tmp_path, "num_steps=2")
    publish = setup.trainer.publish

    def lies(version):
        sent = publish(version)
        setup.engine.version = version - 1
        return sent

    setup.trainer.publish = lies
    with pytest.raises(RunFailed, match=r"samples of versions \[-1\] in step 1, expected 0"):
        setup.run()


def test_a_loss_that_is_not_a_number_ends_the_run_before_it_is_saved(tmp_path):
    setup = Setup(tmp_path, "num_steps=3", "checkpoint.interval=1")
    step = setup.trainer.train_step
    calls = []

    def breaks(batches):
        calls.append(1)
        metrics = step(batches)
        if len(calls) == 3:
            metrics.values["loss"] = float("nan")
        return metrics

    setup.trainer.train_step = breaks
    with pytest.raises(RunFailed, match="loss is nan in optimizer step 3"):
        setup.run()
    assert setup.store.steps() == [1]


def test_an_engine_failure_ends_the_run_with_its_name(tmp_path):
    setup = Setup(tmp_path, "num_steps=3", "eval.before_train=false")
    setup.engine.fail_next = 1
    with pytest.raises(RunFailed, match="engine 0"):
        setup.run()


@pytest.mark.parametrize("old", ["trainer", "rollout"])
def test_the_gap_between_trainer_and_engine_is_measured_whoever_gives_the_old_log_probs(tmp_path, old):
    setup = Setup(tmp_path, "num_steps=1", f"algo.old_logprobs={old}")
    sample = setup.engine._one

    def off_by_a_tenth(request, seed):
        completion = sample(request, seed)
        return dataclasses.replace(completion, logprobs=tuple(p - 0.1 for p in completion.logprobs))

    setup.engine._one = off_by_a_tenth
    setup.run()
    row = setup.rows()[-1]
    assert row["train/train_rollout_logprob_abs_diff"] == pytest.approx(0.1, abs=1e-5)
    assert row["train/train_rollout_logprob_abs_diff_max"] == pytest.approx(0.1, abs=1e-5)


def test_a_single_optimizer_step_needs_no_pass_before_it_and_learns_the_same(tmp_path):
    """The plan leaves the pass out; with it put back, three steps end in the same table."""
    one = ["num_steps=3", "algo.groups_per_step=4", "algo.kl_coef=0.1"]
    without = Setup(tmp_path / "without", *one, run_dir=_made(tmp_path / "without"))
    assert without.plan.algo.old_logprobs == "current"
    asked = []
    logprobs = without.trainer.logprobs
    without.trainer.logprobs = lambda batches, model="policy": asked.append(model) or logprobs(batches, model)
    without.run()
    assert set(asked) == {"reference"}
    put_back = Setup(tmp_path / "with", *one, run_dir=_made(tmp_path / "with"))
    algo = dataclasses.replace(put_back.plan.algo, old_logprobs="trainer")
    put_back.plan = dataclasses.replace(put_back.plan, algo=algo)
    put_back.run()
    ours, theirs = (s.trainer._backend._table.detach().numpy() for s in (without, put_back))
    assert np.abs(ours).max() > 0.1
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_metrics_of_the_corrections_are_recorded(tmp_path):
    words = ["algo.importance.correction=icepop", "algo.importance.veto=0.01", "algo.opsm_delta=1e-6"]
    setup = Setup(tmp_path, "num_steps=1", *words)
    setup.run()
    row = setup.rows()[-1]
    assert row["train/importance_weight"] == pytest.approx(1, abs=1e-5)
    assert row["train/importance_dropped"] == 0
    assert 0 < row["train/opsm_dropped"] < 1
    assert row["train/advantage_abs_mean"] > 0


def test_an_estimator_and_a_loss_of_ones_own_train(tmp_path, monkeypatch):
    """REINFORCE with a constant baseline, written outside of rlrun and named in the configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_algorithm.py").write_text(
        "def estimate(scored):\n    return scored.rewards - 0.1\n"
        "def loss(tokens, options):\n    return -tokens.logprobs * tokens.advantages\n"
    )
    words = ["algo.advantage=own_algorithm:estimate", "algo.loss=own_algorithm:loss"]
    setup = Setup(tmp_path, "num_steps=12", "eval.interval=12", *words)
    setup.run()
    rewards = [row["rollout/reward_mean"] for row in setup.rows() if row["step"] > 0]
    assert np.mean(rewards[-2:]) > np.mean(rewards[:2]) + 0.3
