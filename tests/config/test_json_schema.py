"""The JSON Schema accepts what we ship and refuses what the configuration refuses, judged by `jsonschema`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from omegaconf import OmegaConf

from rlrun import cli
from rlrun.config.json_schema import json_schema
from rlrun.config.keys import all_keys
from rlrun.config.shipped import shipped
from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan

EXPERIMENTS = sorted(path.stem for path in shipped("conf").glob("experiment/*.yaml"))
WHOLE = Draft7Validator(json_schema())


def faults(values: Any, validator: Draft7Validator = WHOLE) -> list[str]:
    return [error.message for error in validator.iter_errors(values)]


@pytest.fixture(scope="module")
def quickstart() -> dict[str, Any]:
    return load_plan(["+experiment=quickstart"]).resolved_config


def test_it_is_a_schema():
    Draft7Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_shipped_experiment_is_valid(name):
    assert faults(load_plan([f"+experiment={name}"]).resolved_config) == []


@pytest.mark.parametrize("path", sorted(shipped("conf").rglob("*/*.yaml")), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_shipped_file_is_valid_for_its_group(path: Path):
    values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert values
    assert faults(values, Draft7Validator(json_schema(path.parent.name))) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algo.clip_hi", 0.3),
        ("nmae", "x"),
        ("model.architecture.hiden_size", 3),
        ("data.eval.pth", "x"),
        ("algo.lr", "fast"),
        ("algo.lr", 0),
        ("algo.group_size", 0),
        ("algo.group_size", 1.5),
        ("algo.kl_estimator", "k4"),
        ("rollout.stop", "x"),
        ("rollout.stop", [1]),
        ("reward.function", "no_colon"),
        ("name", "a/b"),
        ("placement", None),
        ("trainer.sequence_parallel", "yes"),
        ("rollout.sglang.shedule_policy", "lpm"),
        ("rollout.sglang.schedule_policy", "best"),
        ("rollout.sglang.page_size", "large"),
        ("rollout.sglang.gc_threshold", ["a"]),
        ("rollout.sglang.tp_size", 2),
        ("trainer.megatron.moe_aux_loss_coef", 0.1),
        ("trainer.megatron.bucket_size", 1.5),
    ],
)
def test_an_unknown_key_or_wrong_value_is_refused(key, value, quickstart):
    values = copy.deepcopy(quickstart)
    *groups, name = key.split(".")
    node = values
    for group in groups:
        node = node[group]
    node[name] = value
    assert len(faults(values)) == 1


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"defaults": ["_self_", {"override /model": "tiny_qwen3"}]},
        {"num_steps": "${oc.decode:${oc.env:STEPS}}", "algo": {"lr": "${x}"}, "rollout": {"stop": "${y}"}},
        {"rollout": {"sglang": {"schedule_policy": "lpm", "page_size": None, "gc_threshold": [1], "cuda_graph": True}}},
        {"trainer": {"megatron": {"moe_aux_loss_coeff": [0.1], "bucket_size": "${x}"}}},
        {"data": {"eval": None}, "reward": {"arguments": {"any": [1, {"thing": None}]}}},
    ],
)
def test_a_file_may_say_a_part_and_refer_to_other_keys(values):
    assert faults(values) == []


def test_every_documented_key_has_its_description():
    schema = json_schema()

    def described(path: str) -> str:
        node: Any = schema
        for name in path.split("."):
            for choice in (node, *node.get("anyOf", ()), *node.get("allOf", ())):
                if "$ref" in choice:
                    node = schema["$defs"][choice["$ref"].rsplit("/", 1)[-1]]
            node = node["properties"][name]
        return node.get("description", "")

    leaves = [key for key in all_keys().values() if key.section is None]
    assert len(leaves) > 80
    assert {key.path for key in leaves if described(key.path) != key.doc} == set()


def test_the_command_prints_it(capsys):
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()
    assert cli.main(["schema", "algo"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema("algo")


def test_a_group_that_does_not_exist_is_explained():
    with pytest.raises(RlrunError) as e:
        json_schema("alog")
    assert [(p.code, p.hint) for p in e.value.problems] == [("unknown-option", "did you mean `algo`?")]
