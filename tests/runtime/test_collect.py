"""Generating, selecting and refilling with an agent whose rewards are known beforehand; then the whole loop."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from test_loop import Setup, _made, _timeless

from rlrun.data.prompts import PromptSource
from rlrun.data.selection import DROPPED, Hooks
from rlrun.data.types import Group, Prompt, Sample
from rlrun.errors import RunFailed
from rlrun.plan.build import load_plan
from rlrun.plan.types import SamplingPlan
from rlrun.runtime.collect import collect
from rlrun.runtime.supervise import Supervisor

PLAN = load_plan(["+experiment=quickstart"])
DROP = "dynamic_sampling.filter=drop_zero_variance"


class Scripted:
    """Each group is worth something or not, as the list says in turn; remembers what it was asked for."""

    def __init__(self, worth, version=0):
        self.worth, self.version, self.asked = iter(worth), version, []

    async def collect(self, prompts, *, step, first_position=0):
        self.asked.append((len(prompts), first_position))
        return [self.group(prompt, next(self.worth)) for prompt in prompts]

    def group(self, prompt, worth):
        def sample(i):
            zeros = np.zeros(3, np.float32)
            reward = float(i) if worth else 0.0
            tokens = np.arange(3)
            return Sample(
                prompt.prompt_id, i, tokens, 1, np.array([0, 1, 1]), zeros, "stop", self.version, reward=reward
            )

        return Group(prompt, [sample(0), sample(1)])


def a_run(agent, *, need=4, variable=False, runner=None, **sampling):
    settings = {"filter": "drop_zero_variance", "drops": True, "max_refills": 2, "surplus_staleness": 1, **sampling}
    batch = replace(PLAN.batch, prompts_per_rollout=need, variable=variable)
    prompts = [Prompt(i, (), (1,)) for i in range(100)]
    return SimpleNamespace(
        plan=replace(PLAN, batch=batch, sampling=SamplingPlan(**settings)),
        agent=agent,
        source=PromptSource(prompts, False, 0),
        hooks=Hooks(),
        buffer=[],
        guard=Supervisor().guard,
        runner=runner,
    )


def collected(agent, step=1, buffer=(), **settings):
    with asyncio.Runner() as runner:
        run = a_run(agent, runner=runner, **settings)
        run.buffer = list(buffer)
        groups, metrics = collect(run, step)
    return [g.prompt.prompt_id for g in groups], metrics, run


def test_without_a_filter_as_many_are_generated_as_are_needed():
    agent = Scripted([0, 1, 0, 1])
    ids, metrics, run = collected(agent, filter="none", drops=False, max_refills=0, surplus_staleness=0)
    assert ids == [0, 1, 2, 3]
    assert agent.asked == [(4, 0)]
    assert metrics == {"rollout/response_tokens_generated": 16.0}
    assert run.buffer == []


def test_dropped_groups_are_made_up_for_by_new_prompts_at_new_positions():
    agent = Scripted([1, 0, 0, 1, 0, 1, 1])
    ids, metrics, _ = collected(agent)
    assert ids == [0, 3, 5, 6]
    assert agent.asked == [(4, 0), (2, 4), (1, 6)]
    assert metrics["rollout/dropped_zero_variance"] == 3
    assert metrics["rollout/groups_generated"] == 7
    assert metrics["rollout/refills"] == 2


def test_over_sampling_generates_more_at_a_time_and_the_rest_waits():
    agent = Scripted([1, 0, 1, 1, 1, 1])
    ids, metrics, run = collected(agent, over_sampling=1.5)
    assert ids == [0, 2, 3, 4]
    assert agent.asked == [(6, 0)]
    assert [g.prompt.prompt_id for g in run.buffer] == [5]
    assert metrics["rollout/groups_buffered"] == 1
    assert metrics["rollout/groups_discarded"] == 0


def test_surplus_is_dropped_and_counted_where_it_may_not_wait():
    _, metrics, run = collected(Scripted([1] * 6), over_sampling=1.5, surplus_staleness=0)
    assert run.buffer == []
    assert metrics["rollout/groups_discarded"] == 2


def test_groups_that_waited_come_first_and_only_the_others_are_generated():
    waiting = [Scripted([], version=0).group(Prompt(90 + i, (), (1,)), True) for i in range(3)]
    agent = Scripted([1], version=1)
    ids, _, run = collected(agent, step=2, buffer=waiting)
    assert ids == [90, 91, 92, 0]
    assert agent.asked == [(1, 0)]
    assert run.buffer == []


def test_a_buffer_that_is_enough_generates_nothing():
    waiting = [Scripted([]).group(Prompt(90 + i, (), (1,)), True) for i in range(5)]
    agent = Scripted([])
    ids, metrics, run = collected(agent, step=2, buffer=waiting)
    assert ids == [90, 91, 92, 93]
    assert agent.asked == []
    assert [g.prompt.prompt_id for g in run.buffer] == [94]
    assert metrics["rollout/groups_generated"] == 0


def test_groups_that_waited_too_long_are_dropped_and_counted():
    waiting = [Scripted([], version=0).group(Prompt(90, (), (1,)), True)]
    ids, metrics, _ = collected(Scripted([1] * 4, version=2), step=3, buffer=waiting)
    assert ids == [0, 1, 2, 3]
    assert metrics["rollout/dropped_stale"] == 1


def test_too_few_groups_end_the_run_with_all_numbers():
    with pytest.raises(RunFailed) as e:
        collected(Scripted([1, 0, 0, 1] + [0] * 10))
    assert e.value.summary == (
        "step 1 needs 4 prompt groups, and 2 were kept after 2 refills: of 8 generated, 6 were dropped "
        "(6 for zero_variance)"
    )
    assert "dynamic_sampling.max_refills" in e.value.hint
    assert "algo.groups_per_step to null" in e.value.hint


def test_a_step_of_variable_size_takes_all_that_is_kept():
    agent = Scripted([1, 0, 1, 0, 1, 1])
    ids, _, run = collected(agent, variable=True, over_sampling=1.5, surplus_staleness=0)
    assert ids == [0, 2, 4, 5]
    assert agent.asked == [(6, 0)]
    assert run.buffer == []


def test_a_step_of_variable_size_refills_only_when_nothing_is_kept():
    agent = Scripted([0, 0, 0, 0, 0, 1, 0, 0])
    ids, _, _ = collected(agent, variable=True, surplus_staleness=0)
    assert ids == [5]
    assert agent.asked == [(4, 0), (4, 4)]
    with pytest.raises(RunFailed, match="needs 1 prompt groups, and 0 were kept after 2 refills"):
        collected(Scripted([0] * 12), variable=True)


def test_fresh_samples_of_another_version_are_refused():
    with pytest.raises(RunFailed, match=r"samples of versions \[0\] in step 3, expected 2"):
        collected(Scripted([1] * 4, version=0), step=3)


def test_a_function_of_the_users_that_never_returns_meets_the_deadline_of_generation():
    done = threading.Event()
    with asyncio.Runner() as runner:
        run = a_run(Scripted([1] * 4), runner=runner)
        run.plan = replace(run.plan, timeouts=replace(run.plan.timeouts, generate_s=0.1))
        run.hooks = Hooks(group_filter=lambda group: done.wait())
        run.plan = replace(run.plan, sampling=replace(run.plan.sampling, filter="mine:f"))
        with pytest.raises(RunFailed, match="generation of step 1"):
            collect(run, 1)
    done.set()


@settings(max_examples=40)
@given(
    worth=st.lists(st.booleans(), min_size=300, max_size=300),
    need=st.integers(1, 8),
    over=st.sampled_from([1.0, 1.3, 2.0]),
    refills=st.integers(0, 4),
    waiting=st.integers(0, 10),
    variable=st.booleans(),
)
def test_refilling_is_bounded_and_every_kept_group_is_used_once(worth, need, over, refills, waiting, variable):
    buffer = [Scripted([], version=0).group(Prompt(200 + i, (), (1,)), True) for i in range(0 if variable else waiting)]
    agent = Scripted(worth, version=1)
    settings = {"need": need, "over_sampling": over, "max_refills": refills, "variable": variable}
    try:
        ids, metrics, run = collected(agent, step=2, buffer=buffer, **settings)
    except RunFailed:
        assert len(agent.asked) == refills + 1
        assert sum(worth[: sum(n for n, _ in agent.asked)]) + len(buffer) < (1 if variable else need)
        return
    generated = sum(n for n, _ in agent.asked)
    assert len(agent.asked) <= refills + 1
    assert all(n <= np.ceil(need * over) for n, _ in agent.asked)
    assert [first for _, first in agent.asked] == [sum(n for n, _ in agent.asked[:i]) for i in range(len(agent.asked))]
    kept = [g.prompt.prompt_id for g in buffer] + [i for i in range(generated) if worth[i]]
    assert ids + [g.prompt.prompt_id for g in run.buffer] == kept
    assert variable or len(ids) == need
    dropped = sum(metrics[f"rollout/dropped_{reason}"] for reason in DROPPED)
    assert dropped + len(kept) == generated + len(buffer)


LOOP = [
    DROP,
    "dynamic_sampling.over_sampling=1.5",
    "dynamic_sampling.max_refills=20",
    "dynamic_sampling.surplus=buffer",
    "rollout.max_response_tokens=4",
]


def test_a_filtered_run_stopped_and_resumed_equals_an_uninterrupted_one(tmp_path):
    whole = Setup(tmp_path / "a", *LOOP, "num_steps=6", "checkpoint.interval=3", run_dir=_made(tmp_path / "a"))
    whole.run()
    first = Setup(tmp_path / "b", *LOOP, "num_steps=6", "stop_after=3", run_dir=_made(tmp_path / "b"))
    waiting = first.run().buffer
    assert waiting, "nothing waits in step 3, so that the test would show nothing"
    second = Setup(tmp_path / "b", *LOOP, "num_steps=6", run_dir=tmp_path / "b")
    second.run(resume=True)
    assert _timeless(second.rows()) == _timeless(whole.rows())
    assert second.trainer.digest() == whole.trainer.digest()
    rows = [row for row in whole.rows() if row["step"] > 0]
    assert {row["rollout/zero_variance_groups"] for row in rows} == {0.0}
    assert {row["rollout/samples"] for row in rows} == {32}
    assert max(row["rollout/staleness_max"] for row in rows) == 1


class InTwo:
    """An agent whose every rollout comes back as two samples: the first two tokens, and the rest."""

    def __init__(self, agent):
        self._agent = agent

    async def collect(self, prompts, *, step, first_position=0):
        groups = await self._agent.collect(prompts, step=step, first_position=first_position)
        return [replace(g, samples=[part for s in g.samples for part in self.parts(s)]) for g in groups]

    def parts(self, sample):
        end = sample.prompt_length + 2
        if len(sample.tokens) <= end:
            return [sample]
        head = replace(
            sample,
            tokens=sample.tokens[:end],
            loss_mask=sample.loss_mask[:end],
            rollout_logprobs=sample.rollout_logprobs[:end],
        )
        rest = sample.loss_mask * (np.arange(len(sample.tokens)) >= end).astype(np.int8)
        return [head, replace(sample, loss_mask=rest)]


@pytest.mark.parametrize("aggregation", ["token_mean", "rollout_mean", "constant"])
def test_a_rollout_that_comes_back_as_two_samples_teaches_what_it_teaches_as_one(tmp_path, aggregation):
    words = ["num_steps=3", f"algo.loss_aggregation={aggregation}", "eval.interval=null", "data.eval=null"]
    tables = []
    for name, wrap in (("one", lambda agent: agent), ("two", InTwo)):
        setup = Setup(tmp_path, *words, run_dir=_made(tmp_path / name))
        make = setup.agent
        setup.agent = lambda *a, make=make, wrap=wrap: wrap(make(*a))
        setup.run()
        tables.append(setup.trainer._backend._table.detach().numpy())
        samples = {row["rollout/samples"] for row in setup.rows()}
        assert (samples == {32}) == (name == "one")
    assert np.abs(tables[0]).max() > 0.1
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-5, atol=1e-5)


VARIABLE = ["algo.groups_per_step=null", "algo.group_size=2"]
KNOBS = [
    [],
    ["algo.groups_per_step=null"],
    VARIABLE,
    [*VARIABLE, DROP],
    ["algo.loss_aggregation=rollout_mean"],
    ["algo.loss_aggregation=constant"],
    ["algo.loss_aggregation=constant", "algo.loss_constant=2"],
    ["rollout.overlong=mask"],
    ["rollout.overlong=penalize", "rollout.overlong_buffer_tokens=3"],
    ["rollout.overlong=penalize", "rollout.overlong_buffer_tokens=3", "rollout.overlong_penalty=0.3"],
    ["rollout.overlong=drop", "dynamic_sampling.max_refills=30"],
    LOOP,
    [*LOOP, "dynamic_sampling.surplus=discard"],
    ["dynamic_sampling.sample_filter=test_collect:first_half"],
    ["dynamic_sampling.filter=test_collect:first_is_not_best", "dynamic_sampling.max_refills=30"],
    ["reward.postprocess=test_collect:squared"],
]


def test_every_knob_changes_what_is_learned(tmp_path):
    seen: dict[str, str] = {}
    for number, words in enumerate(KNOBS):
        setup = Setup(tmp_path, "num_steps=2", *words, run_dir=_made(tmp_path / str(number)))
        setup.run()
        digest = setup.trainer.digest()[0]["weights"]
        assert digest not in seen, f"{' '.join(words)} learns what {seen[digest]} learns"
        seen[digest] = " ".join(words) or "the plain run"


def first_half(group):
    return [i < len(group.samples) / 2 for i in range(len(group.samples))]


def first_is_not_best(group):
    return group.samples[0].reward < max(s.reward for s in group.samples)


def squared(group):
    return [s.reward**2 for s in group.samples]
