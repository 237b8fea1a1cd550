"""Composition against Hydra's own `compose`, and the origin of every key."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import yaml
from omegaconf import OmegaConf

from rlrun.config.compose import Groups
from rlrun.config.load import load
from rlrun.config.shipped import recipe_file, shipped

CONF = shipped("conf")
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
PLACEMENTS = sorted(p.stem for p in (CONF / "placement").glob("*.yaml"))


def by_hydra(*words: str) -> dict:
    Groups()  # registers the resolver
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(hydra.compose("config", list(words)), resolve=True)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_values_are_those_of_hydras_compose(experiment, placement):
    words = [f"+experiment={experiment}", f"placement={placement}", "algo.lr=0.5", "rollout.stop=[a,'b,c']", "+seed=7"]
    loaded = load(words)
    assert loaded.problems == ()
    expected = by_hydra(*[w for w in words if not w.startswith("+seed") and "stop" not in w])
    expected["seed"] = 7
    expected["rollout"]["stop"] = ["a", "b,c"]
    assert loaded.values == expected


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_origin_of_a_value_is_a_line_that_says_so(experiment):
    """Each origin is read back: the line holds the key, and a scalar line holds the value."""
    loaded = load([f"+experiment={experiment}"])

    def leaves(values: dict, prefix: str = ""):
        for name, value in values.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{name}.")
            elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
                for index, entry in enumerate(value):
                    yield from leaves(entry, f"{prefix}{name}.{index}.")
            else:
                yield f"{prefix}{name}", value

    checked = 0
    for key, value in leaves(loaded.values):
        file, _, line = loaded.origins.of(key).rpartition(":")
        text = (CONF.parent / file).read_text().splitlines()[int(line) - 1]
        [(name, written)] = yaml.safe_load(text.strip().removeprefix("- ")).items()
        assert name == key.rpartition(".")[2]
        if not str(written).startswith("${") and not (written is None and isinstance(value, list)):  # a block below
            assert written == value
        checked += 1
    assert checked > 20


def test_the_last_file_that_sets_a_key_is_its_origin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "long.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /experiment/quickstart\n  - _self_\n\n"
        "num_steps: 300\ndata:\n  eval: null\neval:\n  interval: null\n"
    )
    loaded = load(["+experiment=long", "algo.lr=0.5", "reward.arguments={a: 1}"], "mine")
    assert loaded.problems == ()
    assert loaded.values["num_steps"] == 300
    assert loaded.values["data"]["eval"] is None
    assert loaded.origins.of("num_steps") == "mine/experiment/long.yaml:6"
    assert loaded.origins.of("data.eval") == "mine/experiment/long.yaml:8"
    assert loaded.origins.of("algo.lr") == "command line"
    assert loaded.origins.of("reward.arguments.a") == "command line"
    assert loaded.origins.of("algo.group_size").startswith("conf/experiment/quickstart.yaml:")
    assert loaded.origins.of("checkpoint.keep") == "default"
    assert loaded.experiment == "long"


def test_a_users_option_comes_before_a_shipped_one_of_the_same_name(tmp_path):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "grpo.yaml").write_text("name: mine\nclip_high: 0.5\n")
    loaded = load(["+experiment=quickstart"], str(tmp_path))
    assert loaded.config.algo.name == "mine"
    assert loaded.config.algo.clip_high == 0.5


def test_group_choices_read_the_same_with_and_without_a_plus():
    plain, plus = (
        load(["experiment=quickstart", "placement=cpu_dp2"]),
        load(["+experiment=quickstart", "+placement=cpu_dp2"]),
    )
    assert plain.problems == plus.problems == ()
    assert plain.config == plus.config


def test_shipped_folders_are_found_and_recipes_resolve_to_files():
    assert (shipped("conf") / "config.yaml").is_file()
    assert Path(recipe_file("quickstart/train.jsonl")).is_file()
    assert load(["+experiment=quickstart"]).config.data.train.path == recipe_file("quickstart/train.jsonl")


def test_a_wheel_has_its_folders_inside_the_package(tmp_path, monkeypatch):
    import rlrun.config.shipped as module

    monkeypatch.setattr(module, "PACKAGE", tmp_path / "rlrun")
    assert module.shipped("conf") == tmp_path / "conf"
    (tmp_path / "rlrun" / "_conf").mkdir(parents=True)
    assert module.shipped("conf") == tmp_path / "rlrun" / "_conf"


def test_every_shipped_file_opens_with_a_comment_that_says_how_to_run_it():
    for file in CONF.rglob("*.yaml"):
        head = [line for line in file.read_text().split("\n\n")[0].splitlines() if line.startswith("#")]
        assert any("rlrun " in line and "=" in line for line in head), file
