from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rlrun
from rlrun import cli
from rlrun.config.shipped import shipped
from rlrun.errors import RunFailed

EXPERIMENTS = sorted(p.stem for p in (shipped("conf") / "experiment").glob("*.yaml"))
QUICK = "+experiment=quickstart"
HEAVY = ("torch", "ray", "megatron", "sglang", "mlflow", "transformers", "numpy")


def run_cold(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(Path(rlrun.__file__).parents[1])}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env, timeout=60)


def test_planning_imports_nothing_heavy():
    program = (
        "import sys; from rlrun.cli import main\n"
        "import rlrun.config.load, rlrun.plan.build, rlrun.plan.render, rlrun.plan.explain\n"
        f"assert main(['plan', '{QUICK}']) == 0\n"
        "assert main(['explain', 'algo.lr']) == 0\n"
        "assert main(['plan', 'algo.lr=x']) == 2\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = run_cold("-c", program)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr


def test_a_plan_goes_to_stdout_and_starts_nothing(tmp_path):
    done = run_cold("-m", "rlrun", "plan", QUICK, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("Nothing was started.")
    assert list(tmp_path.iterdir()) == [], "looking leaves no files"


def test_errors_go_to_stderr_with_exit_code_2_and_no_traceback(tmp_path):
    (tmp_path / "raises.py").write_text("print('noise')\nraise ZeroDivisionError('at import')\n")
    done = run_cold("-m", "rlrun", QUICK, "algo.lr=x", "reward.function=raises:f", "placement=none", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ZeroDivisionError: at import" in done.stderr
    assert "Found 3 errors. Nothing was started." in done.stderr
    assert "Traceback" not in done.stderr


def test_json_is_one_document_also_when_something_is_wrong(tmp_path):
    (tmp_path / "noisy.py").write_text("print('noise')\ndef f(prompt, text, label): return 1.0\n")
    good = run_cold("-m", "rlrun", "plan", QUICK, "--json", "reward.function=noisy:f", cwd=tmp_path)
    assert json.loads(good.stdout)["plan"]["name"] == "quickstart"
    bad = run_cold("-m", "rlrun", "plan", "--json", QUICK, "algo.lr=x", cwd=tmp_path)
    assert bad.returncode == 2
    assert [p["code"] for p in json.loads(bad.stdout)["problems"]] == ["wrong-type"]
    assert "error[wrong-type]" in bad.stderr


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m rlrun plan {QUICK} --json | head -1"
    env = {**os.environ, "PYTHONPATH": str(Path(rlrun.__file__).parents[1])}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=env, timeout=60
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_help_lists_verbs_and_experiments(capsys):
    for arguments in ([], ["--help"], ["plan", "-h"]):
        assert cli.main(arguments) == 0
        out = capsys.readouterr().out
        assert all(verb in out for verb in cli.VERBS)
        assert f"Experiments: {', '.join(EXPERIMENTS)}" in out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rlrun 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pln"], "did you mean `rlrun plan`?"),
        (["plan", "--jsn"], "there is no flag --jsn"),
        (["--json", QUICK], "--json belongs to plan, diff and models"),
        (["diff", "quickstart"], "diff compares two things, and got 1"),
        (["diff", "quickstart", "qwen3_grpo", "algo.lr=1"], "diff compares two things, and got 3"),
        (["diff", "-m", "quickstart", "qwen3_grpo"], "-m belongs to run and plan"),
        (["schema", "algo", "model"], "schema takes one group"),
        (["schema", "--json"], "--json belongs to plan, diff and models"),
        (["schema", "--config-dir", "x"], "the schema is the same for every folder"),
        (["plan", "--compare"], "--compare needs a group"),
        (["plan", "--compare", QUICK], "--compare needs a group"),
        (["--compare", "algo", QUICK], "--compare belongs to plan"),
        (["plan", "-m", "--compare", "algo", QUICK], "--compare belongs to plan"),
        (["plan", "--suggest", "--compare", "algo", QUICK], "--compare belongs to plan"),
        (["explain", "-m", "algo.lr"], "-m belongs to run and plan"),
        (["explain"], "explain needs KEY or CODE"),
        (["resume"], "resume needs RUN_DIR"),
        (["resume", "num_steps=3"], "resume needs RUN_DIR"),
        (["resume", "--config-dir", "x", "run"], "resume reads the run's own folder"),
        (["plan", "--config-dir"], "--config-dir needs a folder"),
    ],
)
def test_a_wrong_command_is_explained(arguments, words, capsys):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


@pytest.fixture
def launched(monkeypatch):
    """What the run, resume and sweep verbs hand over, instead of starting it."""
    import rlrun.runtime.launch
    import rlrun.runtime.sweep

    calls: list[tuple] = []
    monkeypatch.setattr(rlrun.runtime.launch, "run", lambda plan: calls.append(("run", plan.name, plan.seed)) or 0)
    monkeypatch.setattr(
        rlrun.runtime.launch, "resume", lambda run_dir, words: calls.append(("resume", run_dir, words)) or 1
    )
    monkeypatch.setattr(
        rlrun.runtime.sweep, "sweep", lambda points, folder: calls.append(("sweep", points, folder)) or 0
    )
    return calls


def test_run_is_the_default_verb(launched):
    assert cli.main([QUICK, "seed=5"]) == 0
    assert cli.main(["run", QUICK, "seed=6"]) == 0
    assert launched == [("run", "quickstart", 5), ("run", "quickstart", 6)]


def test_a_wrong_configuration_is_never_handed_over(launched, capsys):
    assert cli.main([QUICK, "seed=five"]) == 2
    assert launched == []


def test_resume_and_sweep_hand_over_their_words_and_exit_codes(launched, tmp_path):
    assert cli.main(["resume", "runs/a/b", "num_steps=9"]) == 1
    assert cli.main(["-m", QUICK, "seed=1,2", "--config-dir", str(tmp_path)]) == 0
    assert launched == [
        ("resume", "runs/a/b", ["num_steps=9"]),
        ("sweep", [[QUICK, "seed=1"], [QUICK, "seed=2"]], str(tmp_path)),
    ]


def test_a_planned_sweep_reports_every_bad_point(capsys):
    assert cli.main(["plan", "-m", QUICK, "algo.group_size=0,1,4"]) == 2
    err = capsys.readouterr().err
    assert "error[not-allowed]" in err
    assert "error[group-size-too-small]" in err
    assert "(in algo.group_size=1)" in err


def test_a_planned_sweep_as_json_has_a_document_for_each_point(capsys):
    assert cli.main(["plan", "-m", "--json", QUICK, "seed=1,2"]) == 0
    assert [d["plan"]["seed"] for d in json.loads(capsys.readouterr().out)] == [1, 2]


def test_a_failed_run_exits_1_and_an_interrupted_one_130(monkeypatch, capsys):
    import rlrun.runtime.launch

    def fail(plan):
        raise RunFailed("engine 0", "died")

    def interrupt(plan):
        raise KeyboardInterrupt

    monkeypatch.setattr(rlrun.runtime.launch, "run", fail)
    assert cli.main([QUICK]) == 1
    assert "error[run-failed]: engine 0: died" in capsys.readouterr().err
    monkeypatch.setattr(rlrun.runtime.launch, "run", interrupt)
    assert cli.main([QUICK]) == 130


def test_rewards_of_the_working_directory_are_importable(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text("def f(prompt, text, label, bonus=0): return float(bonus)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", os.getcwd())])
    assert cli.main(["plan", QUICK, "reward.function=my_rewards:f", "reward.arguments={bonus: 2}"]) == 0
