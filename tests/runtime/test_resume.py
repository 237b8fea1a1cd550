"""A resume goes on with the same experiment, or says why not. No engines: only plans and checkpoint folders."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.runtime.checkpoint import CheckpointStore, RunState
from rlrun.runtime.launch import write_plan
from rlrun.runtime.resume import resume_plan

QUICK = ["+experiment=quickstart", "num_steps=20", "algo.lr=0.001", "algo.lr_schedule=constant"]


class Saver:
    def save(self, directory):
        open(os.path.join(directory, "weights"), "w").close()

    def digest(self):
        return []


@pytest.fixture
def run_dir(tmp_path):
    """A run stopped after step 10 of 20."""
    return stopped(tmp_path, *QUICK, "stop_after=10", step=10)


def stopped(path, *words, step):
    plan = load_plan([*words, f"output_dir={path}"])
    folder = str(path / "run")
    os.makedirs(folder)
    write_plan(plan, folder)
    state = RunState(step, step, 4 * step, {"epoch": 0, "position": 0, "num_prompts": 80}, plan.config_hash, None)
    CheckpointStore(folder, 2).save(state, Saver())
    return folder


def code_of(run_dir, *overrides):
    with pytest.raises(RlrunError) as caught:
        resume_plan(run_dir, list(overrides))
    (problem,) = caught.value.problems
    return problem


def test_a_stopped_run_goes_on_to_its_end_with_the_same_hash(run_dir):
    plan, state, checkpoint = resume_plan(run_dir, [])
    assert plan.stop_after is None
    assert (state.step, plan.num_steps) == (10, 20)
    assert plan.config_hash == load_plan(QUICK).config_hash
    assert checkpoint.endswith("step_000010")


def test_layout_tracking_and_saving_may_change(run_dir):
    words = ["placement.gpus_per_node=2", "placement.trainer.gpus=2", "placement.trainer.tp=2"]
    plan, _, _ = resume_plan(run_dir, [*words, "tracking.enabled=false", "checkpoint.interval=1"])
    assert (plan.train.tp, plan.tracking, plan.checkpoint.interval) == (2, None, 1)


def test_it_may_stop_again_but_not_where_it_already_is(run_dir):
    assert resume_plan(run_dir, ["stop_after=15"])[0].stop_after == 15
    assert code_of(run_dir, "stop_after=10").code == "stop-already-passed"


def test_what_is_learned_may_not_change_and_the_keys_are_named(run_dir):
    problem = code_of(run_dir, "algo.lr=5e-4", "algo.clip_high=0.3", "rollout.max_retries=9")
    assert problem.code == "resume-changes-experiment"
    assert [w.text for w in problem.where] == ["algo.clip_high: 0.2  ->  0.3", "algo.lr: 0.001  ->  0.0005"]


def test_more_steps_are_allowed_unless_the_learning_rate_depends_on_them(run_dir, tmp_path):
    assert resume_plan(run_dir, ["num_steps=40"])[0].num_steps == 40
    (tmp_path / "cosine").mkdir()
    cosine = stopped(tmp_path / "cosine", *QUICK, "algo.lr_schedule=cosine", step=10)
    problem = code_of(cosine, "num_steps=40")
    assert "a cosine learning rate depends on num_steps" in problem.summary


def test_more_steps_are_refused_too_where_the_critics_learning_rate_depends_on_them(tmp_path):
    folder = stopped(tmp_path, *QUICK, "algo=ppo", "critic.lr_schedule=linear", step=10)
    assert "a linear learning rate depends on num_steps" in code_of(folder, "num_steps=40").summary


def test_a_finished_run_says_so_and_how_to_go_on(tmp_path):
    folder = stopped(tmp_path, *QUICK, step=20)
    problem = code_of(folder)
    assert problem.code == "run-finished"
    assert "step 20 of 20" in problem.summary
    assert resume_plan(folder, [problem.hint.split()[-1]])[0].num_steps == 40


def test_a_folder_without_a_run_or_a_checkpoint_is_refused(tmp_path):
    assert code_of(str(tmp_path)).code == "no-run-there"
    write_plan(load_plan(QUICK), str(tmp_path))
    assert code_of(str(tmp_path)).code == "no-checkpoint"


def saved(run_dir, *steps):
    """Further checkpoints of the run."""
    store = CheckpointStore(run_dir, 9)
    for step in steps:
        _, last = store.latest()
        store.save(replace(last, step=step), Saver())
    return store


def cut(*parts):
    path = os.path.join(*parts)
    with open(path, "ab") as f:
        f.truncate(max(0, os.path.getsize(path) - 1))
    return path


def test_a_damaged_checkpoint_is_named_with_the_command_that_goes_back(run_dir):
    store = saved(run_dir, 12, 14, 16)
    broken = cut(store.path(16), "state.json")
    os.remove(os.path.join(store.path(14), "megatron", "weights"))
    problem = code_of(run_dir)
    assert problem.code == "checkpoint-damaged"
    (where,) = problem.where
    assert where.origin == broken
    size = os.path.getsize(broken)
    assert where.text == f"{size} bytes, saved with {size + 1}"
    assert "to go on from step 12 instead" in problem.hint
    subprocess.run(problem.hint.split("resume again: ")[1], shell=True, check=True)
    _, state, checkpoint = resume_plan(run_dir, [])
    assert (state.step, checkpoint) == (12, store.path(12))


def test_damage_without_an_earlier_checkpoint_means_a_new_run(run_dir):
    cut(run_dir, "checkpoints", "step_000010", "state.json")
    problem = code_of(run_dir)
    assert (problem.code, problem.hint) == ("checkpoint-damaged", "no earlier checkpoint is whole: start a new run")


def test_a_checkpoint_without_a_list_of_sizes_can_be_gone_on_from(run_dir):
    folder = os.path.join(run_dir, "checkpoints", "step_000010")
    os.remove(os.path.join(folder, "files.json"))
    assert resume_plan(run_dir, [])[1].step == 10
    cut(folder, "state.json")
    problem = code_of(run_dir)
    assert (problem.code, problem.where[0].text) == ("checkpoint-damaged", "cannot be read")
    os.remove(os.path.join(folder, "state.json"))
    assert code_of(run_dir).where[0].text == "is gone"


def test_what_a_killed_run_was_writing_is_not_gone_on_from(run_dir):
    store = CheckpointStore(run_dir, 9)
    debris = store.shelf.make(12)
    assert resume_plan(run_dir, [])[1].step == 10
    assert os.path.exists(debris), "reading a run changes nothing in it"


def test_how_often_and_how_it_is_saved_may_change(run_dir):
    words = ["checkpoint.interval=2", "checkpoint.async_save=true", "checkpoint.hf_interval=3", "checkpoint.hf_keep=1"]
    plan, _, _ = resume_plan(run_dir, [*words, "checkpoint.keep_every=6"])
    assert (plan.checkpoint.async_save, plan.checkpoint.hf_interval) == (True, 3)


def test_a_damaged_plan_is_named(run_dir):
    path = os.path.join(run_dir, "plan.json")
    with open(path) as f:
        text = f.read()
    for damaged in (text[: len(text) // 2], "{}", "[]"):
        with open(path, "w") as f:
            f.write(damaged)
        assert code_of(run_dir).code == "plan-unreadable"
