from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data.prompts import PromptSource, Row, load_rows, tokenize_prompts, tokenize_responses
from rlrun.data.types import Prompt
from rlrun.errors import RlrunError


class LetterTokenizer:
    """One token a character; the template spells out roles."""

    eos_token_id: int | None = 0

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize
        return "".join(f"[{m['role'][0]}]{m['content']}" for m in messages) + ("[a]" if add_generation_prompt else "")

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens  # the template has written them already
        return [ord(c) for c in text]


def text_of(prompt: Prompt) -> str:
    return "".join(map(chr, prompt.token_ids))


def write(path, *lines):
    path.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines) + b"\n"
    )
    return str(path)


def test_rows_are_read_in_order_with_their_line_numbers(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    path = write(tmp_path / "d.jsonl", {"q": "1+1", "a": 2, "more": 0}, b"", {"q": messages, "a": None})
    assert load_rows(path, "q", "a") == [Row(1, "1+1", 2), Row(3, messages, None)]
    assert [row.label for row in load_rows(path, "q", None)] == [None, None]


def test_responses_are_read_where_they_are_learned(tmp_path):
    path = write(tmp_path / "d.jsonl", {"q": "1+1", "a": "2"}, {"q": "1+2", "a": "3"})
    assert [(row.label, row.response) for row in load_rows(path, "q", None, "a")] == [(None, "2"), (None, "3")]


@pytest.mark.parametrize("value", ["", 2, None, ["2"]])
def test_a_response_that_is_no_text_is_named(tmp_path, value):
    path = write(tmp_path / "d.jsonl", {"q": "1+1", "a": "2"}, {"q": "1+2", "a": value})
    with pytest.raises(RlrunError) as caught:
        load_rows(path, "q", None, "a")
    (problem,) = caught.value.problems
    assert problem.code == "malformed-jsonl"
    assert problem.where[0].text == f"has a `a` that is {'empty' if value == '' else 'not a text'}"


def test_a_response_ends_with_the_end_of_its_sequence():
    rows = [Row(1, "a", None, "xy"), Row(2, "b", None, "z")]
    assert tokenize_responses(rows, LetterTokenizer(), 3, "d.jsonl") == [(120, 121, 0), (122, 0)]


def test_a_response_that_is_too_long_is_named_with_its_end_counted():
    rows = [Row(1, "a", None, "xy"), Row(7, "b", None, "xyz"), Row(8, "c", None, "wxyz")]
    with pytest.raises(RlrunError) as caught:
        tokenize_responses(rows, LetterTokenizer(), 3, "d.jsonl")
    (problem,) = caught.value.problems
    assert problem.code == "response-too-long"
    assert problem.summary == "2 of 3 responses have more than 3 tokens with their end, up to 5"
    assert [(where.origin, where.text) for where in problem.where] == [
        ("d.jsonl:7", "4 tokens"),
        ("d.jsonl:8", "5 tokens"),
    ]
    assert problem.hint.startswith("set rollout.max_response_tokens to 5")
    assert len(tokenize_responses(rows, LetterTokenizer(), 5, "d.jsonl")) == 3


def test_a_tokenizer_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(LetterTokenizer, "eos_token_id", None)
    with pytest.raises(RlrunError) as caught:
        tokenize_responses([Row(1, "a", None, "b")], LetterTokenizer(), 3, "d.jsonl")
    assert caught.value.problems[0].code == "no-end-token"


def test_a_line_separator_inside_a_text_is_not_the_end_of_a_row(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"q": "a\u2028b", "a": 1}\n', encoding="utf-8")
    assert load_rows(str(path), "q", "a") == [Row(1, "a\u2028b", 1)]


def test_every_bad_line_is_named_and_none_is_skipped(tmp_path):
    path = write(tmp_path / "d.jsonl", {"q": "x", "a": 1}, b"{", [1], {"q": "x"}, {"q": 3, "a": 1}, b"\xff")
    with pytest.raises(RlrunError) as caught:
        load_rows(path, "q", "a")
    (problem,) = caught.value.problems
    assert problem.code == "malformed-jsonl"
    assert problem.summary == f"{path}: 5 of 6 rows cannot be used"
    assert [where.origin for where in problem.where] == [f"{path}:{line}" for line in (2, 3, 4, 5, 6)]


def test_many_bad_lines_are_counted_when_they_are_not_all_shown(tmp_path):
    with pytest.raises(RlrunError) as caught:
        load_rows(write(tmp_path / "d.jsonl", *[b"{"] * 30), "q", None)
    assert caught.value.problems[0].where[-1].text == "and 25 more"


def test_a_missing_file_is_a_problem_of_the_configuration(tmp_path):
    with pytest.raises(RlrunError) as caught:
        load_rows(str(tmp_path / "none.jsonl"), "q", None)
    assert caught.value.problems[0].code == "file-not-found"


def test_a_text_becomes_one_user_turn_after_the_system_prompt():
    rows = [Row(1, "2+2", 4), Row(2, [{"role": "user", "content": "hi"}], None)]
    plain = tokenize_prompts(rows, LetterTokenizer(), None, 100, "d.jsonl")
    assert [text_of(p) for p in plain] == ["[u]2+2[a]", "[u]hi[a]"]
    assert [p.prompt_id for p in plain] == [0, 1]
    assert [p.label for p in plain] == [4, None]
    assert plain[0].messages == ({"role": "user", "content": "2+2"},)
    told = tokenize_prompts(rows, LetterTokenizer(), "be brief", 100, "d.jsonl")
    assert [text_of(p) for p in told] == ["[s]be brief[u]2+2[a]", "[u]hi[a]"]


def test_long_prompts_are_an_error_naming_rows_and_the_length_that_would_do():
    rows = [Row(line, "x" * size, None) for line, size in ((1, 3), (2, 9), (5, 7))]
    assert len(tokenize_prompts(rows, LetterTokenizer(), None, 15, "d.jsonl")) == 3  # 9 + "[u]" + "[a]"
    with pytest.raises(RlrunError) as caught:
        tokenize_prompts(rows, LetterTokenizer(), None, 12, "d.jsonl")
    (problem,) = caught.value.problems
    assert problem.code == "prompt-too-long"
    assert problem.summary == "2 of 3 prompts have more than 12 tokens, up to 15"
    assert [(w.origin, w.text) for w in problem.where] == [("d.jsonl:2", "15 tokens"), ("d.jsonl:5", "13 tokens")]
    assert "rollout.max_prompt_tokens to 15" in problem.hint


def prompts(n: int) -> list[Prompt]:
    return [Prompt(i, ({"role": "user", "content": str(i)},), (i + 1,)) for i in range(n)]


def ids(taken: list[Prompt]) -> list[int]:
    return [p.prompt_id for p in taken]


@given(st.integers(1, 12), st.booleans(), st.integers(0, 3), st.lists(st.integers(0, 9), max_size=8), st.data())
def test_an_interrupted_source_goes_on_as_if_it_had_not_been(n, shuffle, seed, takes, data):
    whole = PromptSource(prompts(n), shuffle, seed)
    expected = [ids(whole.take(k)) for k in takes]
    stop = data.draw(st.integers(0, len(takes)))
    first = PromptSource(prompts(n), shuffle, seed)
    drawn = [ids(first.take(k)) for k in takes[:stop]]
    second = PromptSource(prompts(n), shuffle, seed)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert drawn + [ids(second.take(k)) for k in takes[stop:]] == expected
    assert second.state_dict() == whole.state_dict()


@given(st.integers(1, 12), st.booleans(), st.integers(0, 3), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_every_epoch_holds_every_prompt_once_however_it_is_cut_into_batches(n, shuffle, seed, takes):
    source = PromptSource(prompts(n), shuffle, seed)
    stream = [i for k in takes for i in ids(source.take(k))]
    assert len(stream) == sum(takes)
    for start in range(0, len(stream) - n + 1, n):
        assert sorted(stream[start : start + n]) == list(range(n))
    in_one = ids(PromptSource(prompts(n), shuffle, seed).take(len(stream)))
    assert in_one == stream


def test_order_follows_seed_and_epoch_and_nothing_else():
    def epochs(shuffle: bool, seed: int) -> list[list[int]]:
        source = PromptSource(prompts(50), shuffle, seed)
        return [ids(source.take(50)) for _ in range(3)]

    assert epochs(True, 1) == epochs(True, 1)
    orders = [tuple(order) for seed in (1, 2) for order in epochs(True, seed)]
    assert len(set(orders)) == 6
    assert epochs(False, 1) == [list(range(50))] * 3


def test_a_data_set_of_another_size_is_refused_on_resume():
    state = PromptSource(prompts(3), True, 0).state_dict()
    with pytest.raises(RlrunError) as caught:
        PromptSource(prompts(4), True, 0).load_state_dict(state)
    assert caught.value.problems[0].code == "data-changed"
