"""What is kept between loads: copies, and nothing of a file that has changed."""

from __future__ import annotations

import os

from rlrun.config import recall
from rlrun.config.load import load
from rlrun.plan.dataset import scan

EXPERIMENT = "# @package _global_\ndefaults:\n  - /experiment/quickstart\n  - _self_\n"


def test_an_edited_file_is_read_again_even_when_its_size_and_time_stay_whole_seconds(tmp_path):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    for number in (3, 4, 5):
        file.write_text(f"{EXPERIMENT}num_steps: {number}\n")
        os.utime(file, ns=(number, number))
        for _ in range(2):
            assert load(["+experiment=mine"], str(tmp_path)).config.num_steps == number


def test_a_file_that_appears_in_front_of_a_shipped_one_is_seen(tmp_path):
    (tmp_path / "algo").mkdir()
    assert load(["+experiment=quickstart"], str(tmp_path)).config.algo.name == "grpo"
    mine = tmp_path / "algo" / "grpo.yaml"
    mine.write_text("name: mine\n")
    assert load(["+experiment=quickstart"], str(tmp_path)).config.algo.name == "mine"
    mine.unlink()
    assert load(["+experiment=quickstart"], str(tmp_path)).config.algo.name == "grpo"


def test_a_broken_file_is_looked_at_again(tmp_path):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(f"{EXPERIMENT}num_steps: [3\n")
    assert [p.code for p in load(["+experiment=mine"], str(tmp_path)).problems] == ["yaml-syntax"]
    file.write_text(f"{EXPERIMENT}num_steps: 333\n")
    loaded = load(["+experiment=mine"], str(tmp_path))
    assert (loaded.problems, loaded.config.num_steps) == ((), 333)


def test_overrides_of_one_load_are_not_seen_by_the_next():
    plain = load(["+experiment=quickstart"])
    changed = load(["+experiment=quickstart", "algo.lr=0.5", "reward.arguments={a: 1}", "~eval"])
    again = load(["+experiment=quickstart"])
    assert changed.config.algo.lr == 0.5
    assert again.values == plain.values
    assert again.origins == plain.origins


def test_origins_follow_the_working_directory(tmp_path, monkeypatch):
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{EXPERIMENT}num_steps: 3\n")
    for folder, origin in ((tmp_path, "conf/experiment/mine.yaml:5"), (tmp_path / "conf", "experiment/mine.yaml:5")):
        monkeypatch.chdir(folder)
        assert load(["+experiment=mine"], str(tmp_path / "conf")).origins.of("num_steps") == origin


def test_edited_data_is_scanned_again(tmp_path):
    file = tmp_path / "rows.jsonl"
    for rows in (1, 2):
        file.write_text('{"prompt": "1"}\n' * rows)
        assert [scan(str(file), "prompt", None).num_rows for _ in range(2)] == [rows, rows]


def test_no_more_than_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(recall, "_known", {})
    for number in range(recall.MOST + 3):
        recall.remember(number, [number], {})
    assert recall.recall(0) is None
    assert recall.recall(recall.MOST) == [recall.MOST]
    first, second = recall.recall(5), recall.recall(5)
    assert first == second
    assert first is not second
