"""Frozen models in the hands of rewards and hooks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rlrun.agents.hooks import load_function, load_group_filter
from rlrun.agents.judges import graded
from rlrun.agents.models import asks, insists
from rlrun.agents.rewards import load_reward
from rlrun.backends.sglang.served import ServedModels
from rlrun.errors import RlrunError, RunFailed

HERE = Path(__file__).stem


def by_judge(prompt, response_text, label, models):
    return models["judge"]


def may_judge(prompt, response_text, label, *, models=None):
    return 0.5 if models is None else models["judge"]


def takes_anything(prompt, response_text, label, **others):
    return float(len(others))


def keep(group, models):
    return models["judge"] > group.least


def fails(prompt, response_text, label, models):
    raise RunFailed("model judge", "is gone")


class Judge:
    def __init__(self, answer: str):
        self.answer, self.asked = answer, ""

    def chat(self, question: str, max_tokens: int) -> str:
        self.asked = question
        return self.answer


def test_a_parameter_of_that_name_asks_and_anything_else_does_not():
    assert [asks(f) for f in (by_judge, may_judge, keep, takes_anything, len, lambda models, /: 0)] == [
        *[True] * 3,
        *[False] * 3,
    ]
    assert [insists(f) for f in (by_judge, may_judge, takes_anything)] == [True, False, False]


def test_a_reward_that_asks_is_given_the_models_as_they_are_when_it_is_called():
    models = ServedModels()
    rewards = [load_reward(f"{HERE}:{name}", {}, models=models) for name in ("by_judge", "may_judge")]
    models["judge"] = 0.25  # the servers are up after the functions were loaded
    assert [reward(None, "", None) for reward in rewards] == [0.25, 0.25]
    assert load_reward(f"{HERE}:takes_anything", {"x": 1}, models=models)(None, "", None) == 1.0


def test_without_models_a_reward_that_can_do_without_is_called_without():
    assert load_reward(f"{HERE}:may_judge", {})(None, "", None) == 0.5
    with pytest.raises(RlrunError, match=r"reward-arguments: .*by_judge asks for frozen models, and rollout.models"):
        load_reward(f"{HERE}:by_judge", {})


def test_an_argument_of_that_name_is_the_users_own():
    assert load_reward(f"{HERE}:by_judge", {"models": {"judge": 1.0}})(None, "", None) == 1.0


def test_an_unknown_name_is_told_with_those_there_are():
    reward = load_reward(f"{HERE}:by_judge", {}, models=ServedModels(jury=1.0))
    with pytest.raises(RunFailed, match=r"raised UnknownModel: rollout.models has no 'judge': there is jury"):
        reward(None, "", None)


def test_a_model_that_fails_says_so_itself():
    with pytest.raises(RunFailed) as e:
        load_reward(f"{HERE}:fails", {}, models=ServedModels())(None, "", None)
    assert (e.value.part, e.value.summary) == ("model judge", "is gone")


def test_a_hook_that_asks_is_given_them_too():
    models = ServedModels()
    kept = load_group_filter(f"{HERE}:keep", models)
    models["judge"] = 2.0
    assert [kept(SimpleNamespace(least=least)) for least in (1.0, 3.0)] == [True, False]
    with pytest.raises(RlrunError, match=r"hook-arguments: .*keep asks for frozen models"):
        load_function(f"{HERE}:keep")


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("7", 0.7), ("I give 3 of 10, no: 8", 0.8), ("2.5", 0.25), ("12", 1.0), ("none", 0.0), ("", 0.0)],
)
def test_a_grade_is_the_last_number_as_a_share_of_the_best(answer, reward):
    judge = Judge(answer)
    prompt = SimpleNamespace(messages=({"role": "system", "content": "x"}, {"role": "user", "content": "6 * 7?"}))
    assert graded(prompt, "it is {42}", 42, {"judge": judge}) == pytest.approx(reward)
    assert all(text in judge.asked for text in ("6 * 7?", "it is {42}", "\n42\n"))
