from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rlrun.agents.hooks import load_function, load_group_filter, load_postprocess, load_sample_filter
from rlrun.errors import RlrunError, RunFailed

HERE = Path(__file__).stem
ANSWER: list = [None]
GROUP = SimpleNamespace(samples=[1, 2], prompt=SimpleNamespace(prompt_id=7))


def answers(group):
    if isinstance(ANSWER[0], Exception):
        raise ANSWER[0]
    return ANSWER[0]


def of_two(group, step):
    return True


async def later(group):
    return True


def test_a_function_of_one_group_is_loaded():
    assert load_function(f"{HERE}:answers") is sys.modules[HERE].answers


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nowhere:f", "hook-not-importable"),
        (f"{HERE}:nothing", "hook-not-importable"),
        (f"{HERE}:HERE", "hook-not-importable"),
        (f"{HERE}:of_two", "hook-arguments"),
        (f"{HERE}:later", "hook-arguments"),
    ],
)
def test_what_cannot_be_called_is_refused(path, code):
    with pytest.raises(RlrunError) as e:
        load_function(path)
    assert [p.code for p in e.value.problems] == [code]


@pytest.mark.parametrize(
    ("load", "good", "result", "bad"),
    [
        (load_group_filter, True, True, [1, None, "yes", [True, False]]),
        (load_sample_filter, (True, False), [True, False], [True, [True], [1, 0], "ab"]),
        (load_sample_filter, np.array([True, False]), [True, False], [np.array([True])]),
        (load_postprocess, [1, 0.5], [1.0, 0.5], [1.0, [1.0], [1.0, float("nan")], [True, False], ["a", "b"]]),
        (load_postprocess, np.array([1.0, 2.0]), [1.0, 2.0], [None, {}]),
    ],
)
def test_an_answer_is_checked(load, good, result, bad):
    hook = load(f"{HERE}:answers")
    module = sys.modules[HERE]
    module.ANSWER[0] = good
    assert hook(GROUP) == result
    for value in bad:
        module.ANSWER[0] = value
        with pytest.raises(RunFailed, match=f"{HERE}:answers returned"):
            hook(GROUP)


def test_an_exception_is_named_with_the_prompt():
    sys.modules[HERE].ANSWER[0] = KeyError("score")
    with pytest.raises(RunFailed, match="raised KeyError: 'score' for prompt 7"):
        load_group_filter(f"{HERE}:answers")(GROUP)
