from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.agents.rewards import contains, exact_match, load_reward, number_match, position_match
from rlrun.errors import RlrunError, RunFailed


def test_exact_match_ignores_blanks_around_both():
    assert exact_match(None, " 42\n", "42 ") == 1.0
    assert exact_match(None, "42", 42) == 1.0
    assert exact_match(None, "4 2", "42") == 0.0


def test_contains_looks_for_the_label_anywhere():
    assert contains(None, "the answer is 42.", 42) == 1.0
    assert contains(None, "the answer is 24.", 42) == 0.0


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        ("123", "123", 1.0),
        ("124", "123", 2 / 3),
        ("12", "123", 2 / 3),
        ("321", "123", 1 / 3),
        ("123123", "123", 1 / 2),  # going on does not pay
        ("", "123", 0.0),
        ("x", "", 0.0),
        ("", "", 1.0),
        ("12", 12, 1.0),
    ],
)
def test_position_match_is_the_share_of_characters_in_their_place(response, label, reward):
    assert position_match(None, response, label) == reward


@given(st.text(alphabet="ab"), st.text(alphabet="ab"))
def test_position_match_is_one_only_for_the_label_itself(response, label):
    reward = position_match(None, response, label)
    assert 0 <= reward <= 1
    assert (reward == 1) == (response == label)
    assert reward == position_match(None, label, response)


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        ("so it is 1,000.", "1000", 1.0),
        ("first 3, then 4", 4, 1.0),
        ("4, then 3", 4, 0.0),
        ("7 - 5 or 7-5", "5", 1.0),  # a minus between numbers is no sign
        ("x = -5", "-5", 1.0),
        ("x = -5", "5", 0.0),
        ("1.50", "1.5", 1.0),
        ("12345,678", "678", 1.0),  # no thousands: two numbers
        ("none", "0", 0.0),
    ],
)
def test_number_match_compares_the_last_number(response, label, reward):
    assert number_match(None, response, label) == reward


def a_reward(prompt, response_text, label, scale=1.0):
    return scale * len(response_text)


async def a_coroutine(prompt, response_text, label):
    return 1.0


def returns_what_it_is_told(prompt, response_text, label, value):
    return value


def fails(prompt, response_text, label):
    raise KeyError("no such thing")


HERE = "reward_functions_under_test"
a_constant = 3


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


def test_arguments_are_bound():
    assert load_reward(f"{HERE}:a_reward", {"scale": 0.5})(None, "four", None) == 2.0
    assert load_reward("rlrun.agents.rewards:exact_match", {})(None, "a", "a") == 1.0


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_package.rewards:f", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("rlrun.agents.rewards:exact_macth", "AttributeError: module 'rlrun.agents.rewards' has no attribute"),
        (f"{HERE}:a_constant", "a_constant is a int, not a function"),
    ],
)
def test_a_function_that_is_not_there_is_a_problem_with_its_reason(path, reason):
    with pytest.raises(RlrunError) as caught:
        load_reward(path, {})
    (problem,) = caught.value.problems
    assert problem.code == "reward-not-importable"
    assert reason in problem.summary


def test_a_module_that_fails_while_it_is_imported_is_a_problem_too(tmp_path, monkeypatch):
    (tmp_path / "broken_reward_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RlrunError, match="ZeroDivisionError: division by zero"):
        load_reward("broken_reward_module:f", {})


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("a_reward", {"sclae": 1}, "unexpected keyword argument 'sclae'"),
        ("returns_what_it_is_told", {}, "missing a required argument: 'value'"),
        ("a_reward", {"label": 1}, "multiple values for argument 'label'"),
        ("a_coroutine", {}, "coroutine"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_refused_before_the_run(name, arguments, reason):
    with pytest.raises(RlrunError) as caught:
        load_reward(f"{HERE}:{name}", arguments)
    (problem,) = caught.value.problems
    assert problem.code == "reward-arguments"
    assert reason in problem.summary


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int64(2), np.float64(-1)])
def test_any_finite_real_number_is_a_reward(value):
    reward = load_reward(f"{HERE}:returns_what_it_is_told", {"value": value})(None, "", None)
    assert type(reward) is float
    assert reward == value


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), None, "1.0", True, [1.0], 1j, np.ones(1)])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(RunFailed) as caught:
        load_reward(f"{HERE}:returns_what_it_is_told", {"value": value})(None, "the text", None)
    assert f"{HERE}:returns_what_it_is_told returned " in caught.value.summary
    assert type(value).__name__ in caught.value.summary
    assert "'the text'" in caught.value.summary


def test_a_dict_is_refused_with_what_to_do_instead():
    reward = load_reward(f"{HERE}:returns_what_it_is_told", {"value": {"score": 1.0}})
    with pytest.raises(RunFailed) as caught:
        reward(None, "", None)
    assert caught.value.hint == "set reward.key to one of its entries: score"


def test_an_exception_of_the_function_names_it_and_the_response():
    with pytest.raises(RunFailed) as caught:
        load_reward(f"{HERE}:fails", {})(None, "x" * 500, "the label")
    assert caught.value.part == "reward"
    assert "KeyError: 'no such thing'" in caught.value.summary
    assert "'the label'" in caught.value.summary
    assert len(caught.value.summary) < 300


def test_rewards_import_nothing_but_the_standard_library():
    code = "import sys, rlrun.agents.rewards; print(sorted({'numpy', 'torch', 'pydantic', 'ray'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_one_entry_of_a_dict_is_the_reward():
    arguments = {"value": {"score": 0.5, "format": 1.0}}
    assert load_reward(f"{HERE}:returns_what_it_is_told", arguments, "score")(None, "", None) == 0.5
    assert load_reward(f"{HERE}:returns_what_it_is_told", arguments, "format")(None, "", None) == 1.0


@pytest.mark.parametrize(
    ("value", "words"),
    [({"score": "high"}, "returned 'high'"), ({"other": 1.0}, "a dict with other, not score"), (1.0, "an entry of it")],
)
def test_an_entry_that_is_not_there_or_not_a_number_is_refused(value, words):
    reward = load_reward(f"{HERE}:returns_what_it_is_told", {"value": value}, "score")
    with pytest.raises(RunFailed, match=words):
        reward(None, "", None)
