from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

from rlrun.agents.single_turn import SingleTurn, sample_seed, to_sample
from rlrun.backends.base import Completion, GenerateRequest
from rlrun.backends.fake import FakeEngine
from rlrun.data.types import Prompt
from rlrun.errors import RunFailed

DEADLINE_S = 30


def prompt(i: int) -> Prompt:
    return Prompt(i, ({"role": "user", "content": str(i)},), (10 + i, 20), label=str(i))


def completion(text: str = "a", reason: str = "stop", ids: tuple[int, ...] = (5, 2)) -> Completion:
    return Completion(ids, tuple(-0.5 for _ in ids), reason, policy_version=7, text=text)


class Scripted:
    """Answers each request with what `answer(request)` returns, and counts the requests in flight."""

    def __init__(self, answer):
        self.answer = answer
        self.requests: list[GenerateRequest] = []
        self.in_flight = self.most_in_flight = self.cancelled = 0

    async def generate(self, request: GenerateRequest) -> list[Completion]:
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            result = self.answer(request)
            return await result if asyncio.iscoroutine(result) else result
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1


def group_of(request: GenerateRequest) -> list[Completion]:
    return [completion() for _ in request.seeds]


def agent(backend, reward=lambda prompt, text, label: 1.0, **changes) -> SingleTurn:
    settings = {
        "group_size": 2,
        "temperature": 0.8,
        "max_response_tokens": 6,
        "stop": ["\n"],
        "seed": None,
        "stream": "train",
        "max_concurrent_groups": 4,
        "reward_timeout_s": DEADLINE_S,
    }
    return SingleTurn(backend, reward, **{**settings, **changes})


def collect(agent: SingleTurn, prompts, step: int = 1):
    return asyncio.run(asyncio.wait_for(agent.collect(prompts, step=step), DEADLINE_S))


def test_a_sample_is_the_prompts_ids_and_the_very_ids_of_the_engine():
    sample = to_sample(prompt(3), completion(ids=(5, 6, 2)), rollout_id=9)
    assert sample.tokens.tolist() == [13, 20, 5, 6, 2]
    assert sample.loss_mask.tolist() == [0, 0, 1, 1, 1]  # the stop token is learned too
    assert sample.rollout_logprobs.tolist() == [0, 0, -0.5, -0.5, -0.5]
    assert (sample.prompt_id, sample.rollout_id, sample.prompt_length, sample.policy_version) == (3, 9, 2, 7)
    assert (sample.finish_reason, sample.response_text, sample.metrics) == ("stop", "a", {"aborted": 0.0})


def test_nothing_of_an_aborted_sample_is_learned_and_it_is_counted():
    for ids in ((5, 6), ()):
        sample = to_sample(prompt(3), completion(reason="abort", ids=ids), 0)
        assert sample.loss_mask.tolist() == [0] * (2 + len(ids))
        assert sample.metrics == {"aborted": 1.0}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Completion((5, 2), (-0.5,), "stop", 0, "a"), "1 log-probs for 2 tokens"),
        (Completion((), (), "stop", 0, ""), "an empty response that ended with stop"),
        (Completion((5,), (float("nan"),), "length", 0, ""), "not finite"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_refused(answer, message):
    with pytest.raises(RunFailed, match=message):
        to_sample(prompt(0), answer, 0)


def test_requests_say_what_the_agent_was_built_with():
    backend = Scripted(group_of)
    collect(agent(backend), [prompt(1)])
    assert backend.requests == [GenerateRequest((11, 20), (None, None), 0.8, 6, ("\n",))]


def test_groups_come_in_the_order_of_the_prompts_whatever_finishes_first():
    async def later_for_the_first(request: GenerateRequest) -> list[Completion]:
        for _ in range(50 - request.token_ids[0]):
            await asyncio.sleep(0)  # yields; takes no time
        return [completion(text=str(request.token_ids[0] - 10)) for _ in request.seeds]

    groups = collect(agent(Scripted(later_for_the_first), max_concurrent_groups=20), [prompt(i) for i in range(20)])
    assert [g.prompt.prompt_id for g in groups] == list(range(20))
    assert [s.response_text for g in groups for s in g.samples] == [str(i) for i in range(20) for _ in range(2)]
    assert [s.rollout_id for g in groups for s in g.samples] == list(range(40))


def test_rewards_get_the_prompt_the_text_and_the_label():
    seen = []

    def reward(prompt, text, label):
        seen.append((prompt.prompt_id, text, label))
        return float(text)

    texts = itertools.count(1)
    backend = Scripted(lambda request: [completion(text=str(next(texts))) for _ in request.seeds])
    (group,) = collect(agent(backend, reward, group_size=3), [prompt(5)])
    assert sorted(seen) == [(5, "1", "5"), (5, "2", "5"), (5, "3", "5")]
    assert [s.reward for s in group.samples] == [1.0, 2.0, 3.0]


def test_an_aborted_sample_moves_neither_its_groups_mean_nor_the_steps():
    answers = [completion("1"), completion("", reason="abort", ids=()), completion("0")]
    (group,) = collect(
        agent(Scripted(lambda _: answers), lambda p, text, label: float(text), group_size=3), [prompt(0)]
    )
    assert [s.reward for s in group.samples] == [1.0, 0.5, 0.0]
    all_aborted = Scripted(lambda _: [completion("", reason="abort", ids=())] * 2)
    (group,) = collect(agent(all_aborted, lambda p, text, label: float(text)), [prompt(0)])
    assert [s.reward for s in group.samples] == [0.0, 0.0]


def test_no_more_groups_are_in_flight_than_allowed():
    async def slowly(request: GenerateRequest) -> list[Completion]:
        await asyncio.sleep(0)
        return group_of(request)

    backend = Scripted(slowly)
    collect(agent(backend, max_concurrent_groups=3), [prompt(i) for i in range(30)])
    assert backend.most_in_flight == 3
    assert len(backend.requests) == 30


def test_a_slow_reward_keeps_no_engine_waiting():
    """Every group is generated while the first reward has still not returned."""
    backend = Scripted(group_of)
    all_generated = threading.Event()

    def reward(prompt, text, label):
        if len(backend.requests) == 8:
            all_generated.set()
        assert all_generated.wait(DEADLINE_S)
        return 0.0

    collect(agent(backend, reward, group_size=1, max_concurrent_groups=1), [prompt(i) for i in range(8)])
    assert all_generated.is_set()


def test_a_failure_names_the_prompt_and_cancels_the_rest():
    async def answer(request: GenerateRequest) -> list[Completion]:
        if request.token_ids[0] == 12:
            raise RunFailed("engine 1", "refused", "look at its log")
        await asyncio.Event().wait()
        raise AssertionError("never")

    backend = Scripted(answer)
    with pytest.raises(RunFailed) as caught:
        collect(agent(backend), [prompt(i) for i in range(4)])
    assert (caught.value.part, caught.value.summary) == ("engine 1", "prompt 2: refused")
    assert caught.value.hint == "look at its log"
    assert (backend.in_flight, backend.cancelled) == (0, 3)


def test_our_own_mistake_in_a_backend_is_still_a_run_that_failed_on_a_prompt():
    def answer(request: GenerateRequest):
        raise ValueError("odd")

    with pytest.raises(RunFailed, match="prompt 0: ValueError: odd"):
        collect(agent(Scripted(answer)), [prompt(0)])


def test_cancelling_a_collection_leaves_nothing_running():
    async def forever(request: GenerateRequest) -> list[Completion]:
        await asyncio.Event().wait()
        raise AssertionError("never")

    backend = Scripted(forever)

    async def cancelled() -> None:
        before = asyncio.all_tasks()
        task = asyncio.create_task(agent(backend).collect([prompt(0), prompt(1)], step=1))
        while backend.in_flight < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(cancelled(), DEADLINE_S))
    assert backend.in_flight == 0


def test_a_reward_that_is_late_fails_the_run_and_says_so():
    release = threading.Event()
    try:
        with pytest.raises(RunFailed) as caught:
            collect(agent(Scripted(group_of), lambda *_: release.wait(), reward_timeout_s=0.05), [prompt(4)])
    finally:
        release.set()
    assert caught.value.part == "reward"
    assert caught.value.summary == "prompt 4: the reward function took longer than 0.05 s"


def test_waiting_for_a_free_thread_is_no_part_of_a_rewards_deadline():
    """100 rewards of 20 ms each on 32 threads take longer than the deadline of one."""
    done = threading.Event()
    settings = {"group_size": 100, "reward_timeout_s": 1.0}
    (group,) = collect(agent(Scripted(group_of), lambda *_: float(done.wait(0.02)), **settings), [prompt(0)])
    assert len(group.samples) == 100


def test_a_reward_that_never_returns_does_not_keep_the_program_from_ending():
    code = """
import asyncio, threading
from rlrun.agents.single_turn import SingleTurn
from rlrun.backends.base import Completion
from rlrun.data.types import Prompt
from rlrun.errors import RunFailed

class Backend:
    async def generate(self, request):
        return [Completion((2,), (0.0,), "stop", 0, "")]

agent = SingleTurn(Backend(), lambda *_: threading.Event().wait(), group_size=1, temperature=1.0, max_response_tokens=1,
                   stop=(), seed=None, stream="train", max_concurrent_groups=1, reward_timeout_s=0.05)
try:
    asyncio.run(agent.collect([Prompt(0, (), (1,))], step=1))
except RunFailed as error:
    print(error.part)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "reward"


def test_seeds_differ_in_every_coordinate_and_fit_63_bits():
    coordinates = itertools.product((0, 1), ("train", "eval"), (1, 2), (0, 1), (0, 1), (0, 1))
    seeds = [sample_seed(*at) for at in coordinates]
    assert len(set(seeds)) == 64
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_on_every_machine():
    """printf 1234/train/1/0/0/0 | sha256sum | head -c 16, halved."""
    assert sample_seed(1234, "train", 1, 0, 0, 0) == 2669530642839621936


def test_a_seeded_rollout_repeats_itself_whatever_the_concurrency():
    def tokens(step: int, concurrency: int, stream: str = "train") -> list[list[int]]:
        engine = FakeEngine(positions=32, vocab_size=8)
        turns = agent(engine, seed=7, max_concurrent_groups=concurrency, stop=(), stream=stream)
        groups = collect(turns, [prompt(0), prompt(1), prompt(0)], step)
        return [s.tokens.tolist() for g in groups for s in g.samples]

    assert tokens(1, 1) == tokens(1, 3)
    assert tokens(1, 1) != tokens(2, 1)
    assert tokens(1, 1) != tokens(1, 1, "eval")
    drawn = tokens(1, 1)
    assert drawn[:2] != drawn[4:]  # the same prompt, drawn twice in one step
    assert drawn[0] != drawn[1]


def test_temperature_zero_is_greedy():
    engine = FakeEngine(positions=8, vocab_size=8)
    engine.table = np.random.default_rng(0).normal(size=(8, 8))
    (group,) = collect(agent(engine, temperature=0.0, stop=()), [prompt(0)])
    expected = engine.table.argmax(-1)[2:8].tolist()
    ended = expected[: expected.index(2) + 1] if 2 in expected else expected
    assert [s.tokens.tolist()[2:] for s in group.samples] == [ended] * 2
