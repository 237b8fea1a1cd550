"""Supervised learning on the fake trainer: the loop draws rows, learns their responses, and starts nothing else."""

from __future__ import annotations

import asyncio
import io
import json
import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.backends.base import Rendezvous
from rlrun.backends.fake import STEP_SIZE, FakeEngine, FakeTrainer
from rlrun.data.prompts import PromptSource
from rlrun.data.types import Prompt
from rlrun.errors import RlrunError, RunFailed
from rlrun.plan.build import load_plan
from rlrun.runtime import inputs
from rlrun.runtime.checkpoint import CheckpointStore
from rlrun.runtime.gauge import Gauge
from rlrun.runtime.launch import write_plan
from rlrun.runtime.loop import Run, train
from rlrun.runtime.progress import Progress
from rlrun.runtime.sft import sample_of
from rlrun.runtime.summary import Outcome, learned, print_outcome, summarise
from rlrun.runtime.supervise import Supervisor
from rlrun.runtime.sweep import print_table
from rlrun.runtime.turns import Turns
from rlrun.tracking.base import JsonlTracker, Trackers

PROMPT, VOCAB, EOS, LONGEST = 3, 13, 2, 4
LR = 0.05
BASE = [
    "+experiment=quickstart_sft",
    "algo.prompts_per_rollout=4",
    "algo.groups_per_step=2",
    f"algo.lr={LR}",
    "trainer.max_tokens_per_gpu=64",
    "checkpoint.interval=null",
]
ROWS = [
    Prompt(i, ({"role": "user", "content": str(i)},), (1, 3 + i, 1), response_ids=(*answer, EOS))
    for i, answer in enumerate([(7, 8, 9), (7,), (7, 8), (7, 8, 9), (7, 8), (7, 8, 9)])
]

torch.set_num_threads(1)


class OneRank:
    """The driver's view of one fake rank. Publishing, values and log-probs are nobody's business here."""

    def __init__(self, backend):
        self._backend, self.batches = backend, []

    def train_step(self, batches):
        self.batches += batches
        return self._backend.train_step(batches[0])

    def digest(self):
        return [self._backend.digest()]

    def memory(self):
        return [self._backend.memory()]

    def save(self, directory):
        self._backend.save(directory)

    def load(self, directory):
        self._backend.load(directory)

    @property
    def table(self):
        return self._backend._table.detach().numpy()


class Setup:
    def __init__(self, folder, *words, rows=ROWS, progress=None):
        folder.mkdir(exist_ok=True)
        self.plan, self.rows_ = load_plan([*BASE, *words]), rows
        self.trainer = OneRank(FakeTrainer(self.plan, FakeEngine(PROMPT + LONGEST, VOCAB)))
        self.trainer._backend.start(Rendezvous(0, 1, "", 0), "")
        self.folder, self.path = folder, str(folder / "metrics.jsonl")
        self.store = CheckpointStore(str(folder), keep=3, digest=True)
        self.progress = progress or Progress(io.StringIO(), quiet=True)

    def run(self, resume=False):
        state = self.store.latest() if resume else None
        with asyncio.Runner() as runner:
            run = Run(
                plan=self.plan,
                trainer=self.trainer,
                agent=None,
                eval_agent=None,
                source=PromptSource(self.rows_, self.plan.data.shuffle, self.plan.seed),
                eval_prompts=[],
                tracker=Trackers([JsonlTracker(self.path, state[1].step if state else None)]),
                store=self.store,
                progress=self.progress,
                guard=Supervisor().guard,
                runner=runner,
                turns=Turns(self.plan, self.trainer, None),
                gauge=Gauge(self.trainer),
            )
            if state:
                path, saved = state
                self.trainer.load(f"{path}/megatron")
                run.source.load_state_dict(saved.source)
                run.step, run.optimizer_steps, run.learned = saved.step, saved.optimizer_steps, True
            train(run)
        return run

    def rows(self):
        with open(self.path) as f:
            return [json.loads(line) for line in f]


def test_the_responses_are_learned_and_nothing_of_the_prompts(tmp_path):
    setup = Setup(tmp_path, "num_steps=20")
    run = setup.run()
    rows = setup.rows()
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert rows[0]["train/loss"] > 2
    assert rows[-1]["train/loss"] < 0.8  # responses of different lengths: a table by position cannot foretell the end
    table = setup.trainer.table
    assert not table[:PROMPT].any()
    assert [int(row.argmax()) for row in table[PROMPT:]] == [7, 8, 9, EOS]
    assert run.optimizer_steps == 40
    assert rows[-1]["train/optimizer_steps"] == 40


def test_what_is_recorded_is_about_rows_and_not_about_samples(tmp_path):
    setup = Setup(tmp_path, "num_steps=3")
    setup.run()
    rows = setup.rows()
    assert all(not name.startswith(("rollout/", "sync/", "eval/")) for row in rows for name in row)
    assert [row["train/epoch"] for row in rows] == pytest.approx([4 / 6, 8 / 6, 2.0])
    assert sum(row["train/tokens"] for row in rows) == 2 * sum(len(p.response_ids) for p in ROWS)
    for row in rows:
        assert row["train/nll"] == row["train/loss"]
        assert row["train/lr"] == LR
        assert row["train/entropy"] > 0
        assert row["train/grad_norm"] > 0
        assert row["perf/train_tokens_per_s"] > 0


def test_the_first_step_is_the_one_of_the_closed_form(tmp_path):
    """On a table of zeros every token has probability 1 / VOCAB; the gradient is softmax minus one-hot, by weight."""
    setup = Setup(tmp_path, "num_steps=1", "algo.groups_per_step=4", "data.shuffle=false")
    setup.run()
    assert setup.rows()[0]["train/loss"] == pytest.approx(math.log(VOCAB))
    tokens = [(PROMPT + t, token) for row in ROWS[:4] for t, token in enumerate(row.response_ids)]
    expected = np.zeros((PROMPT + LONGEST, VOCAB))
    for position, token in tokens:
        expected[position] -= 1 / VOCAB / len(tokens)
        expected[position, token] += 1 / len(tokens)
    np.testing.assert_allclose(setup.trainer.table, STEP_SIZE * LR * expected, atol=1e-7)


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("token_mean", [1 / 6] * 6),
        ("sequence_mean", [1 / 8] * 4 + [1 / 4] * 2),
        ("rollout_mean", [1 / 8] * 4 + [1 / 4] * 2),
        ("constant", [1 / 10] * 6),
    ],
)
def test_a_token_weighs_what_it_weighs_in_every_other_loss(tmp_path, aggregation, weights):
    """A response of four tokens and one of two, in one optimizer step."""
    words = [f"algo.loss_aggregation={aggregation}", *(["algo.loss_constant=5"] if aggregation == "constant" else [])]
    setup = Setup(tmp_path, "num_steps=1", "algo.prompts_per_rollout=2", "data.shuffle=false", *words)
    setup.run()
    (batch,) = setup.trainer.batches
    given_weights = np.concatenate([w[PROMPT:] for w in sorted(batch.loss_weights, key=len, reverse=True)])
    np.testing.assert_allclose(given_weights, weights, rtol=1e-6)
    assert not any(w[:PROMPT].any() for w in batch.loss_weights)
    assert batch.old_logprobs == batch.ref_logprobs == []


def test_stopped_and_resumed_equals_uninterrupted(tmp_path):
    whole = Setup(tmp_path / "a", "num_steps=6", "checkpoint.interval=3")
    whole.run()
    Setup(tmp_path / "b", "num_steps=6", "stop_after=3").run()
    second = Setup(tmp_path / "b", "num_steps=6")
    second.run(resume=True)
    assert timeless(second.rows()) == timeless(whole.rows())
    assert second.trainer.digest() == whole.trainer.digest()


def timeless(rows):
    return [{name: value for name, value in row.items() if not name.startswith("perf/")} for row in rows]


@pytest.fixture(scope="module")
def digest(tmp_path_factory):
    def run(*words):
        setup = Setup(tmp_path_factory.mktemp("run"), "num_steps=2", *words)
        setup.run()
        return setup.trainer.digest()[0]["weights"]

    return run


@pytest.mark.parametrize(
    "word",
    [
        "algo.lr=0.01",
        "algo.entropy_coef=0.1",
        "algo.prompts_per_rollout=2",
        "algo.groups_per_step=4",
        "algo.loss_aggregation=sequence_mean",
        "seed=99",
        "data.shuffle=false",
    ],
)
def test_a_key_that_sft_takes_changes_what_is_learned(digest, word):
    assert digest(word) != digest()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(3, 99), min_size=1, max_size=9), st.lists(st.integers(3, 99), max_size=9))
def test_a_row_becomes_a_sample_whose_response_alone_counts(prompt, response):
    row = Prompt(5, (), tuple(prompt), response_ids=(*response, EOS))
    sample = sample_of(row)
    assert sample.tokens.tolist() == [*prompt, *response, EOS]
    assert sample.loss_mask.tolist() == [0] * len(prompt) + [1] * (len(response) + 1)
    assert (sample.prompt_length, sample.response_length, sample.prompt_id) == (len(prompt), len(response) + 1, 5)


class Letters:
    """One token a character."""

    eos_token_id = EOS

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return ">".join(m["content"] for m in messages) + ">"

    def encode(self, text, add_special_tokens):
        return [ord(c) for c in text]


def test_rows_are_tokenized_once_as_generation_would_see_them(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "load_tokenizer", lambda folder: Letters())
    (tmp_path / "rows.jsonl").write_text('{"prompt": "12", "response": "21"}\n{"prompt": "3", "response": "3"}\n')
    words = [f"data.train.path={tmp_path}/rows.jsonl", "algo.prompts_per_rollout=2"]
    read = inputs.load_inputs(load_plan([*BASE, *words]), "")
    found = [("".join(map(chr, p.token_ids)), p.response_ids) for p in read.train]
    assert found == [("12>", (ord("2"), ord("1"), EOS)), ("3>", (ord("3"), EOS))]
    assert (read.reward, read.eval) == (None, [])
    short = load_plan([*BASE, *words, "rollout.max_prompt_tokens=2", "rollout.max_response_tokens=1"])
    with pytest.raises(RlrunError) as e:
        inputs.load_inputs(short, "")
    assert [p.code for p in e.value.problems] == ["prompt-too-long", "response-too-long"]
    assert [len(p.where) for p in e.value.problems] == [1, 2]


def test_a_loss_that_is_not_a_number_ends_the_run_before_it_is_saved(tmp_path):
    setup = Setup(tmp_path, "num_steps=3", "checkpoint.interval=1")
    step = setup.trainer.train_step

    def breaks(batches):
        metrics = step(batches)
        if len(setup.trainer.batches) == 3:
            metrics.values["loss"] = float("nan")
        return metrics

    setup.trainer.train_step = breaks
    with pytest.raises(RunFailed, match="loss is nan in optimizer step 3"):
        setup.run()
    assert setup.store.steps() == [1]


def test_the_step_line_and_the_summary_speak_of_the_loss(tmp_path, capsys):
    stream = io.StringIO()
    setup = Setup(tmp_path, "num_steps=4", progress=Progress(stream))
    setup.run()
    assert all(line.startswith(f"step {i + 1}/4  loss +") for i, line in enumerate(stream.getvalue().splitlines()))
    assert "reward" not in stream.getvalue()
    write_plan(setup.plan, str(tmp_path))
    outcome = Outcome(plan=setup.plan, run_dir=str(tmp_path), began=time.time(), status="finished", exit_code=0, step=4)
    summary = summarise(outcome)
    losses = [row["train/loss"] for row in setup.rows()]
    assert (summary["first_reward_mean"], summary["last_reward_mean"]) == (None, None)
    assert summary["first_loss_mean"] == pytest.approx(np.mean(losses[:2]))
    assert summary["last_loss_mean"] == pytest.approx(np.mean(losses[2:]))
    change = f"{np.mean(losses[:2]):.3f} -> {np.mean(losses[2:]):.3f}"
    assert learned(summary) == ("loss", change)
    outcome.hf_checkpoint = str(tmp_path / "hf")
    print_outcome(outcome)
    text = capsys.readouterr().out
    assert f"  loss        {change}   mean of the first and the last 2 steps" in text
    assert f"rlrun plan +experiment=NAME model.init=pretrained model.path={tmp_path / 'hf'} model.alphabet=null" in text
    print_table(["algo.lr=1"], [outcome])
    assert f"finished  loss {change}  " in capsys.readouterr().out
