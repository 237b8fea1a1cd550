"""Lists and mappings of groups of keys: their entries are checked, located and documented key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config.keys import all_keys, find_key, item_keys
from rlrun.config.load import load
from rlrun.config.partial import Partial, Unreadable
from rlrun.config.sections.base import plain
from rlrun.config.sections.placement import ServerGroup
from rlrun.plan.context import Context
from rlrun.plan.explain import explain

PD = "+experiment=qwen3_pd"
GROUPS = "placement.rollout.server_groups"

FILE = """\
# @package _global_
defaults:
  - /experiment/qwen3_pd
  - _self_
placement:
  rollout:
    server_groups:
      - type: prefill
        gpus: 2
      - type: decode
        num_gpus: 2
"""


def test_entries_are_found_by_their_position_and_their_name():
    key = find_key(f"{GROUPS}.0.gpus")
    assert key is not None
    assert key.expected == "a whole number, at least 1"
    assert find_key(f"{GROUPS}.3.sglang.max_running_requests") is not None
    assert find_key("rollout.models.judge.path") is not None
    for wrong in (f"{GROUPS}.gpus", f"{GROUPS}.0.gpuz", f"{GROUPS}.0.gpus.more", "rollout.models.judge.pth"):
        assert find_key(wrong) is None
    assert item_keys(f"{GROUPS}.1.gpuz") == (f"{GROUPS}.1", list(ServerGroup.model_fields))
    assert all_keys()[GROUPS].expected == "a list of groups of keys"


def test_a_wrong_key_of_an_entry_is_shown_with_its_line_and_the_one_that_was_meant(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text(FILE)
    problems = load(["+experiment=mine"], str(tmp_path)).problems
    assert [p.code for p in problems] == ["missing-value", "unknown-key"]
    unknown = problems[1]
    assert unknown.summary == f"{GROUPS}.1 has no key `num_gpus`"
    assert unknown.hint == f"did you mean `{GROUPS}.1.gpus`?"
    assert Path(unknown.where[0].origin).name == "mine.yaml:11"
    assert Path(problems[0].where[0].origin).name == "mine.yaml:10"


def test_one_key_of_one_entry_can_be_set_by_a_word():
    loaded = load([PD, f"{GROUPS}.1.gpus=3", f"+{GROUPS}.0.name=reads"])
    assert not loaded.problems
    first, second = loaded.config.placement.rollout.server_groups
    assert (first.name, second.gpus) == ("reads", 3)
    assert loaded.origins.of(f"{GROUPS}.1.gpus") == "command line"
    assert loaded.origins.of(f"{GROUPS}.1.type") == "conf/placement/pd_8gpu.yaml:19"
    assert loaded.origins.of(GROUPS) == "conf/placement/pd_8gpu.yaml:15"


def test_a_list_set_by_a_word_replaces_that_of_the_file():
    loaded = load([PD, f"{GROUPS}=[{{type: regular, gpus: 4}}]"])
    assert loaded.origins.of(f"{GROUPS}.1.type") == "command line"
    assert len(loaded.config.placement.rollout.server_groups) == 1
    [first, second] = load([PD, f"{GROUPS}=[prefill, decode]"]).problems
    assert [first.where[0].origin, second.where[0].origin] == ["command line", "command line"]


def test_entries_are_whole_beside_a_wrong_key_elsewhere_and_unreadable_beside_one_among_them():
    loaded = load([PD, "algo.lr=fast"])
    assert isinstance(loaded.config, Partial)
    assert isinstance(loaded.config.placement.rollout.server_groups[0], ServerGroup)
    broken = load([PD, f"{GROUPS}.0.gpus=two"])
    with pytest.raises(Unreadable):
        broken.config.placement.rollout.server_groups  # noqa: B018


def test_values_of_entries_are_shown_as_they_would_be_written():
    loaded = load([PD])
    context = Context(loaded.config, loaded.origins)
    assert context.value(f"{GROUPS}.1.sglang.max_running_requests") == 256
    assert plain(context.value(GROUPS))[0] == {"type": "prefill", "gpus": 2, "gpus_per_engine": 2}


def test_explain_lists_the_keys_of_an_entry():
    shown = explain(GROUPS, [PD])
    assert "Each entry has" in shown
    assert "  gpus_per_engine  GPUs of one engine;" in shown
    entry = shown.partition("Each entry has")[2].splitlines()
    assert max(map(len, entry)) <= 100
    assert "GPUs of the group together." in explain(f"{GROUPS}.0.gpus", [PD])
