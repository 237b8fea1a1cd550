"""`plan --compare`: a row an option, the reasons of those that cannot be, and the same as JSON."""

from __future__ import annotations

import json

import pytest

from rlrun import cli
from rlrun.config.shipped import shipped
from rlrun.errors import RlrunError
from rlrun.plan.compare import compare, comparison_document, render_comparison

SPLIT = ["+experiment=qwen3_grpo", "placement=split_8gpu", "rollout.sglang.cuda_graph=true"]


@pytest.fixture(scope="module")
def modes():
    return compare("async_mode", SPLIT)


@pytest.fixture(scope="module")
def colocated():
    return compare("async_mode", ["+experiment=qwen3_grpo"])


def test_every_option_has_a_row_and_the_best_are_marked(modes):
    lines = render_comparison(modes).splitlines()
    assert lines[0] == "qwen3_grpo by async_mode, 200 steps, estimated"
    assert lines[1].split() == ["placement", "GPUs", "step", "tokens/s", "bubble", "stale", "hours", "GPU-hours"]
    rows = {line.split()[0]: line for line in lines[2:5]}
    assert list(rows) == ["fully_async", "one_step", "sync"]
    assert all("disaggregated" in row for row in rows.values())
    best = min(modes.options, key=lambda option: option.time.step_s).name
    assert modes.fastest == best
    assert [name for name, row in rows.items() if "fastest" in row] == [best]
    assert lines[-1] == "3 of 3 options can be planned. Nothing was started."


def test_a_mode_that_cannot_run_yet_says_so(modes):
    text = render_comparison(modes)
    assert "  one_step: cannot run yet, async-not-runnable" in text
    assert "  sync: cannot run yet" not in text


def test_modes_that_a_placement_forbids_show_code_and_change(colocated):
    text = render_comparison(colocated)
    assert "  one_step     no plan" in text
    assert "  one_step: error[async-colocated]; set placement.mode to disaggregated with" in text
    assert "1 of 3 options can be planned." in text
    assert max(map(len, text.splitlines())) <= 105  # the last column may end late


def test_the_choice_of_the_group_on_the_command_line_gives_way():
    one = compare("async_mode", [*SPLIT, "async_mode=one_step"])
    assert all(option.plan.async_mode.name == option.name for option in one.options)


def test_other_groups_are_compared_alike_and_a_cpu_has_no_estimate():
    found = compare("placement", ["+experiment=qwen3_grpo"])
    text = render_comparison(found)
    assert any(line.split() == ["cpu_1", "colocated", "1", "no", "estimate", "on", "cpu"] for line in text.splitlines())
    timed = [option for option in found.options if option.time is not None]
    assert found.cheapest == min(timed, key=lambda option: option.time.gpu_hours).name


def test_what_is_wrong_with_every_option_is_said_once():
    with pytest.raises(RlrunError) as e:
        compare("async_mode", [*SPLIT, "algo.lr=x"])
    assert [p.code for p in e.value.problems] == ["wrong-type"]


def test_a_group_that_there_is_not_is_named():
    with pytest.raises(RlrunError) as e:
        compare("async", SPLIT)
    assert [p.code for p in e.value.problems] == ["unknown-option"]


def test_json_has_plan_or_problems_of_each_option(colocated, capsys):
    document = json.loads(json.dumps(comparison_document(colocated)))
    assert document["options"]["sync"]["plan"]["time"]["step_s"] > 0
    assert document["options"]["one_step"]["plan"] is None
    assert [p["code"] for p in document["options"]["one_step"]["problems"]] == ["async-colocated"]
    assert (document["group"], document["fastest"], document["cheapest"]) == ("async_mode", "sync", "sync")


def test_the_command_prints_either(capsys):
    assert cli.main(["plan", "--compare=algo", "+experiment=qwen3_grpo"]) == 0
    assert "qwen3_grpo by algo" in capsys.readouterr().out
    assert cli.main(["plan", "--json", "--compare", "algo", "+experiment=qwen3_grpo"]) == 0
    options = list(json.loads(capsys.readouterr().out)["options"])
    assert options == sorted(p.stem for p in (shipped("conf") / "algo").glob("*.yaml"))
