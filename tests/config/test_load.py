from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.keys import all_keys
from rlrun.config.load import expand_sweep, load
from rlrun.config.partial import Partial, Unreadable
from rlrun.config.schema import RunConfig
from rlrun.errors import RlrunError

QUICK = "+experiment=quickstart"


def codes(*words: str, config_dir: str | None = None) -> list[str]:
    return [p.code for p in load(list(words), config_dir).problems]


def test_unknown_keys_of_files_and_words_name_the_nearest_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "x.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /experiment/quickstart\n  - _self_\n"
        "algo:\n  lrr: 1\ntrainr:\n  recompute: full\n"
    )
    problems = load(["+experiment=x", "++rollout.temprature=1"], ".").problems
    assert [(p.where[0].origin, p.hint) for p in problems] == [
        ("command line", "did you mean `rollout.temperature`?"),
        ("experiment/x.yaml:6", "did you mean `algo.lr`?"),
        ("experiment/x.yaml:7", "did you mean `trainer`?"),
    ]


def test_a_file_without_the_package_line_is_told_to_add_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_text("name: x\n")
    [problem] = [p for p in load(["+experiment=x"], ".").problems if p.code == "unknown-key"]
    assert "@package _global_" in (problem.hint or "")


def test_hydras_advice_to_write_plus_does_not_create_a_typo():
    for word in ("algo.clip_hi=0.1", "+algo.clip_hi=0.1", "++algo.clip_hi=0.1", "+placement.trainer.dp=2"):
        assert codes(QUICK, word) == ["unknown-key"], word


def test_an_unknown_option_does_not_hide_other_problems_and_adds_no_noise():
    assert codes(QUICK, "model=tiny", "placement=cpu", "algo.lr=x") == [
        "unknown-option",
        "unknown-option",
        "wrong-type",
    ]


def test_yaml_errors_of_two_files_are_both_reported_with_their_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for group, text in (("algo", "name: a\n  lr: 1\n"), ("model", "name: [\n")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "bad.yaml").write_text(text)
    problems = load([QUICK, "algo=bad", "model=bad", "+typo=1"], ".").problems
    assert sorted((p.code, p.where[0].origin) for p in problems) == [
        ("unknown-key", "command line"),
        ("yaml-syntax", "algo/bad.yaml:2"),
        ("yaml-syntax", "model/bad.yaml:2"),
    ]


def test_a_key_written_twice_in_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "twice.yaml").write_text("name: a\nlr: 0.1\nlr: 0.2\n")
    [problem] = load([QUICK, "algo=twice"], ".").problems
    assert problem.code == "yaml-syntax"
    assert problem.where[0].origin == "algo/twice.yaml:3"


def test_question_marks_in_a_file_ask_for_a_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /experiment/quickstart\n  - _self_\nalgo:\n  clip_low: ???\n"
    )
    [problem] = load(["+experiment=x"], ".").problems
    assert (problem.code, problem.where[0].origin) == ("missing-value", "experiment/x.yaml:6")
    assert load(["+experiment=x", "algo.clip_low=0.1"], ".").problems == ()


def test_interpolations_see_values_of_the_command_line():
    loaded = load([QUICK, "num_steps=12", "eval.interval=${num_steps}", "name=n${seed}"])
    assert loaded.config.eval.interval == 12
    assert loaded.config.name == "n1234"


def test_a_deleted_key_has_its_default_again():
    loaded = load([QUICK, "~algo.lr", "~data.eval", "~eval.interval"])
    assert loaded.problems == ()
    assert loaded.config.algo.lr == 1e-6
    assert loaded.config.data.eval is None


def test_a_dictionary_sets_several_keys_and_its_typos_are_found():
    assert load([QUICK, "eval={interval: 3, max_prompts: 4}"]).config.eval.max_prompts == 4
    assert codes(QUICK, "eval={intervall: 3}") == ["unknown-key"]


def test_items_of_a_list_are_named_with_their_list():
    [problem] = load([QUICK, "rollout.stop=[a,1]"]).problems
    assert problem.code == "wrong-type"
    assert "rollout.stop" in problem.summary
    assert problem.hint == "set rollout.stop to a list of texts; the default is []"


@pytest.mark.parametrize(
    ("words", "points"),
    [
        ([QUICK], [[QUICK]]),
        (
            [QUICK, "algo.lr=1e-3,2e-3", "seed=range(1,3)"],
            [
                [QUICK, "algo.lr=0.001", "seed=1"],
                [QUICK, "algo.lr=0.001", "seed=2"],
                [QUICK, "algo.lr=0.002", "seed=1"],
                [QUICK, "algo.lr=0.002", "seed=2"],
            ],
        ),
        (
            ["placement=cpu_1,cpu_dp2", "rollout.stop=[a,b]"],
            [["placement=cpu_1", "rollout.stop=[a,b]"], ["placement=cpu_dp2", "rollout.stop=[a,b]"]],
        ),
        (["algo=glob(*grpo)"], [["algo=dr_grpo"], ["algo=grpo"]]),
        (["~data.eval", "name='a,b'"], [["~data.eval", "name='a,b'"]]),
    ],
)
def test_sweeps_are_hydras_cartesian_product(words, points):
    assert expand_sweep(words) == points


def test_sweep_points_are_those_of_hydras_basic_sweeper():
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    words = [QUICK, "algo.lr=1e-3,2e-3", "seed=choice(1,2,3)", "name=a"]
    [batch] = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(words), None)
    assert expand_sweep(words) == batch


def test_sweeps_without_a_list_of_values_are_refused():
    with pytest.raises(RlrunError) as e:
        expand_sweep(["algo.lr=interval(0,1)", "bad=[", "seed=1,2"])
    assert sorted(p.code for p in e.value.problems) == ["bad-override", "sweep-not-possible"]


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70_000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["a", "", "1"]),
)
VALUES = st.one_of(ATOMS, st.lists(ATOMS, max_size=2), st.dictionaries(st.sampled_from(["a", "b"]), ATOMS, max_size=2))


def read_all(node: Any, section: type, prefix: str = "") -> None:
    for name in section.model_fields:
        try:
            value = getattr(node, name)
        except Unreadable:
            continue
        key = all_keys()[f"{prefix}{name}"]
        if key.section is not None and value is not None:
            read_all(value, key.section, f"{prefix}{name}.")


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(all_keys())), VALUES, min_size=1, max_size=4))
def test_any_value_at_any_key_is_taken_or_becomes_a_problem(changes):
    """Never an exception; a whole RunConfig when there are no problems; all good keys can be read."""
    from hydra.core.override_parser.types import Override

    words = [f"++{key}={Override._get_value_element_as_str(value)}" for key, value in changes.items()]
    loaded = load([QUICK, *words])
    assert loaded.problems or isinstance(loaded.config, RunConfig)
    read_all(loaded.config, RunConfig)


def test_a_key_below_what_the_command_line_made_a_list_is_a_problem():
    loaded = load([QUICK, "++critic=[]", "++critic.adam_beta1=null"])
    assert "bad-override" in [problem.code for problem in loaded.problems]


def test_reading_a_wrong_key_is_unreadable_and_its_neighbours_are_not():
    config = load(
        [QUICK, "algo.group_size=0", "rollout.stop=[1]", "algo.groups_per_step=16", "checkpoint.keep=3"]
    ).config
    assert isinstance(config, Partial)
    assert config.algo.groups_per_step == 16
    assert config.checkpoint.keep == 3
    assert config.checkpoint.hf_at_end is True
    for read in (lambda: config.algo.group_size, lambda: config.rollout.stop):
        with pytest.raises(Unreadable):
            read()
