"""`rlrun diff`: which differences are found, to which side and origin they belong, and what they mean."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from rlrun import cli
from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan, plan_to_json
from rlrun.plan.diff import NOT_SET, Comparison, diff, diff_document, render_diff

QUICK = "+experiment=quickstart"


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Writes words into a file in an empty folder; gives the operand that names it."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, *lines: str) -> str:
        Path(name).write_text("".join(f"{line}\n" for line in (QUICK, *lines)))
        return f"@{name}"

    return write


def rows(found: Comparison, group: str) -> dict[str, tuple]:
    return {d.key: (d.a, d.b) for d in getattr(found, group)}


def test_keys_are_told_apart_by_what_they_change(words):
    a = words("a", "algo.lr=1e-3", "# a remark", '\'rollout.stop=["1","2"]\' num_steps=8')
    b = words("b", "algo.lr=2e-3", "timeouts.sync_s=7", 'num_steps=8 \'rollout.stop=["1","2"]\'')
    found = diff([a, b])
    assert rows(found, "semantic") == {"algo.lr": (1e-3, 2e-3)}
    assert rows(found, "other") == {"timeouts.sync_s": (600.0, 7)}
    assert not found.decided, "what only repeats a key is no decision"
    assert not found.same_experiment
    [lr] = found.semantic
    assert (lr.a_origin, lr.b_origin) == ("command line", "command line")
    [sync] = found.other
    assert (sync.a_origin, sync.b_origin) == ("default", "command line")


def test_layout_alone_is_the_same_experiment_with_other_decisions(words):
    found = diff(["quickstart", words("b", "placement=cpu_dp2", "algo.lr_warmup_steps=0")])
    assert found.same_experiment
    assert not found.semantic
    assert rows(found, "other")["placement.trainer.gpus"] == (1, 2)
    decided = rows(found, "decided")
    assert decided["train.dp"] == (1, 2)
    assert decided["batch.samples_per_rank"][0] == 2 * decided["batch.samples_per_rank"][1]
    assert "They are the same experiment" in render_diff(found)


def test_each_side_names_the_file_and_line_that_set_its_value():
    found = diff(["quickstart", "qwen3_grpo"])
    [init] = [d for d in found.semantic if d.key == "model.init"]
    assert (init.a, init.b) == ("random", "pretrained")
    assert (init.a_origin or "").startswith("conf/model/tiny_qwen3.yaml:")
    assert init.b_origin == "default"


def test_a_group_that_one_side_lacks_is_told_by_its_keys(words):
    found = diff(["quickstart", words("b", "data.eval=null", "eval.interval=null")])
    evaluation = rows(found, "semantic")
    assert "data.eval" not in evaluation
    assert evaluation["data.eval.path"][1] is NOT_SET
    document = diff_document(found)
    [path] = [row for row in document["semantic"] if row["key"] == "data.eval.path"]
    assert (path["a_set"], path["b_set"], path["b"], path["b_origin"]) == (True, False, None, None)


def test_arguments_of_the_reward_are_compared_one_by_one(words, tmp_path):
    (tmp_path / "diff_scores.py").write_text("def f(prompt, text, label, low=0, high=1): return 1.0\n")
    a = words("a", "reward.function=diff_scores:f 'reward.arguments={low: 1, high: 2}'")
    b = words("b", "reward.function=diff_scores:f 'reward.arguments={low: 1, high: 3}'")
    assert rows(diff([a, b]), "semantic") == {"reward.arguments.high": (2, 3)}


def test_a_run_is_compared_by_its_folder_its_plan_or_the_printed_plan(words, tmp_path, capsys):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    plan = load_plan([QUICK, "algo.lr=1e-3", "timeouts.sync_s=7"])
    (run / "plan.json").write_text(plan_to_json(plan))
    assert cli.main(["plan", QUICK, "algo.lr=1e-3", "timeouts.sync_s=7", "--json"]) == 0
    (tmp_path / "printed.json").write_text(capsys.readouterr().out)
    same = words("same", "algo.lr=1e-3", "timeouts.sync_s=7")
    for saved in ("runs/one", "runs/one/plan.json", "printed.json"):
        assert render_diff(diff([saved, same])).endswith(
            f"No difference: the same experiment, config hash {plan.config_hash}."
        )
        found = diff([saved, "quickstart"])
        assert set(rows(found, "semantic")) == {"algo.lr"}
        [lr] = found.semantic
        assert lr.a_origin == "command line"


def test_a_plan_of_an_older_version_can_be_compared(words, tmp_path):
    plan = json.loads(plan_to_json(load_plan([QUICK])))
    del plan["timeouts"]
    plan["resolved_config"]["algo"]["forgotten"] = 3
    plan["config_hash"] = "0" * 12
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    found = diff(["plan.json", "quickstart"])
    assert rows(found, "semantic") == {"algo.forgotten": (3, NOT_SET)}
    assert rows(found, "decided")["timeouts"][0] is NOT_SET


def test_other_data_under_the_same_name_is_another_experiment_without_a_key(words, tmp_path):
    rows_file = tmp_path / "rows.jsonl"
    rows_file.write_text('{"prompt": "1", "label": "1"}\n' * 40)
    (tmp_path / "plan.json").write_text(plan_to_json(load_plan([QUICK, f"data.train.path={rows_file}"])))
    rows_file.write_text('{"prompt": "2", "label": "2"}\n' * 40)
    found = diff(["plan.json", words("b", f"data.train.path={rows_file}")])
    assert (found.same_experiment, found.semantic) == (False, ())
    assert "the files behind data or model differ" in render_diff(found)


def test_a_moved_file_with_the_same_rows_is_the_same_experiment(words, tmp_path):
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text('{"prompt": "1", "label": "1"}\n' * 40)
    found = diff([words("a", "data.train.path=one.jsonl"), words("b", "data.train.path=two.jsonl")])
    assert found.same_experiment
    assert set(rows(found, "other")) == {"data.train.path"}


def test_the_text_names_both_values_and_both_origins(words):
    a, b = words("a", "algo.lr=1e-3"), words("b", "timeouts.sync_s=7", "algo.lr=2e-3")
    hashes = [load_plan([QUICK, f"algo.lr={lr}"]).config_hash for lr in ("1e-3", "2e-3")]
    assert render_diff(diff([a, b])) == dedent(f"""\
        a  @a
        b  @b

        They are different experiments: config hash {hashes[0]} and {hashes[1]}.

        Changes the experiment
          algo.lr  0.001 -> 0.002   command line

        Changes nothing that is learned
          timeouts.sync_s  600 -> 7   default -> command line""")


def test_problems_of_both_sides_come_together_with_the_side_they_are_in(words, capsys):
    a, b = words("a", "algo.lr=fast"), words("b", "algo.clip_hi=1")
    assert cli.main(["diff", a, b]) == 2
    error = capsys.readouterr().err
    assert "(in @a)" in error
    assert "(in @b)" in error
    assert "Found 2 errors." in error


def test_two_equal_exit_codes_and_json(words, capsys):
    b = words("b", "algo.lr=1e-3")
    assert cli.main(["diff", "quickstart", b, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in document["semantic"]] == ["algo.lr"]
    assert (document["schema"], document["same_experiment"], document["b"]["word"]) == (1, False, "@b")
    assert cli.main(["diff", "quickstart", "quickstart"]) == 0
    assert "No difference" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("operand", "content", "code", "text"),
    [
        ("quikstart", None, "unknown-option", "did you mean `quickstart`?"),
        ("empty/folder", None, "no-run-there", "there is no file empty/folder"),
        ("./", None, "no-run-there", "holds no plan.json"),
        ("@gone", None, "words-unreadable", "no such file"),
        ("@open", "'+experiment=quickstart", "words-unreadable", "no closing quotation"),
        ("x.json", "{", "plan-unreadable", "JSONDecodeError"),
        ("x.json", "[]", "plan-unreadable", "AttributeError"),
        ("x.json", '{"changed": []}', "plan-unreadable", "KeyError"),
        ("x.json", '{"schema": 1, "plan": null, "problems": []}', "plan-unreadable", "TypeError"),
    ],
)
def test_an_operand_that_is_nothing_is_explained(operand, content, code, text, words, tmp_path):
    if content is not None:
        (tmp_path / operand.lstrip("@")).write_text(content)
    with pytest.raises(RlrunError) as e:
        diff([operand, "quickstart"])
    [problem] = e.value.problems
    assert problem.code == code
    assert text in f"{problem.summary} {problem.hint}"
    assert problem.hint


def test_every_server_group_is_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    key = "placement.rollout.server_groups.1.sglang.max_running_requests"
    Path("b").write_text(f"+experiment=qwen3_pd {key}=32\n")
    found = diff(["qwen3_pd", "@b"])
    assert rows(found, "decided")["engines.policy-decode.max_running_requests"] == (256, 32)
    assert not any(name.startswith("engines.policy-prefill") for name in rows(found, "decided"))
