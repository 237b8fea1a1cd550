"""Frozen models in the plan: what their engines serve, who makes room, and whether they fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan, plan_from_json, plan_to_json
from rlrun.plan.layout import GIB
from rlrun.plan.render import render_plan
from rlrun.plan.served import family_of, longest_context, weight_bytes

sys.path.insert(0, str(Path(__file__).parent))
from weights_on_disk import write_safetensors

SHARED = ["+experiment=qwen3_grpo", "reward.function=rlrun.agents.judges:graded"]
TURNS = [*SHARED, "rollout.offload=true"]


def groups(judge: int, policy: int, sglang: str = "", size: int = 1) -> str:
    own = f", sglang: {{{sglang}}}" if sglang else ""
    judged = f"{{type: regular, gpus: {judge}, model: judge, gpus_per_engine: {size}{own}}}"
    return f"placement.rollout.server_groups=[{judged}, {{type: regular, gpus: {policy}}}]"


def judge_of(folder: Path, gib: float, dtype: str = "BF16", more: str = "", **config: object) -> str:
    """The judge in YAML: a checkpoint of so many GiB in bfloat16."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    write_safetensors(folder / "model.safetensors", {"weight": (int(gib * GIB) // 2,)}, dtype)
    return f"rollout.models={{judge: {{path: {folder}{more}}}}}"


def problems(words: list[str]) -> list:
    with pytest.raises(RlrunError) as e:
        load_plan(words)
    return list(e.value.problems)


def test_an_engine_makes_room_where_it_shares_a_gpu_with_the_trainer(tmp_path):
    words = [judge_of(tmp_path, 1), groups(2, 6), "placement.trainer.gpus=4", "placement.gpu=h200_141gb"]
    plan = load_plan([*TURNS, *words])
    assert [(e.model, e.offload) for e in plan.engines[:5]] == [
        ("judge", True),
        ("judge", True),
        ("policy", True),
        ("policy", True),
        ("policy", False),
    ]
    assert not any(e.offload for e in load_plan([*SHARED, *words]).engines)


def test_the_host_keeps_the_weights_that_nobody_sends_again(tmp_path):
    words = [judge_of(tmp_path, 3), groups(4, 4, size=2)]
    terms = {t.name: t.num_bytes for t in load_plan([*TURNS, *words]).memory.host.terms}
    assert terms["frozen models"] == 2 * 3 * GIB  # two engines on the node, a copy each
    assert "frozen models" not in {t.name for t in load_plan([*SHARED, *words]).memory.host.terms}


def test_weights_larger_than_their_share_of_a_gpu_are_refused_with_a_share_that_holds_them(tmp_path):
    # 80 GiB GPUs of which engines have half.
    words = [*TURNS, judge_of(tmp_path, 50)]
    [problem] = problems([*words, groups(2, 6)])
    assert problem.code == "engine-memory-too-small"
    assert "judge has 50.0 GiB of weights for each of an engine's 1 GPUs" in problem.summary
    share = problem.hint.split()[-1]
    load_plan([*words, groups(2, 6, f"mem_fraction_static: {share}")])
    load_plan([*words, groups(2, 6, size=2)])
    float32 = [*TURNS, judge_of(tmp_path, 30, more=", dtype: float32")]
    assert [p.code for p in problems([*float32, groups(2, 6)])] == ["engine-memory-too-small"]


def test_a_share_that_leaves_the_trainer_too_little_is_refused_with_one_that_does_not(tmp_path):
    words = [*SHARED, judge_of(tmp_path, 1)]
    load_plan([*words, groups(2, 6)])
    [problem] = problems([*words, groups(2, 6, "mem_fraction_static: 0.9")])
    assert problem.code == "memory-does-not-fit"
    assert "judge (group judge-regular) shares it with the trainer" in problem.summary
    share = float(problem.hint.split()[-1])
    load_plan([*words, groups(2, 6, f"mem_fraction_static: {share}")])
    assert problems([*words, groups(2, 6, f"mem_fraction_static: {share + 0.02}")])


def test_the_share_counts_where_the_trainer_is_alone(tmp_path):
    """On GPUs of its own a judge may take nearly all."""
    words = ["placement=split_8gpu", judge_of(tmp_path, 60), groups(2, 2, "mem_fraction_static: 0.9")]
    assert load_plan([*SHARED, *words]).deployment.models[0].weight_bytes == 60 * GIB


def test_the_plan_names_a_frozen_model_with_its_size_type_and_context(tmp_path):
    words = [judge_of(tmp_path, 1, more=", context_length: 4096"), groups(2, 6)]
    plan = load_plan([*SHARED, *words])
    assert f"frozen    judge: {tmp_path}, 1.1 GB bfloat16, up to 4,096 tokens" in render_plan(plan)
    assert plan_from_json(plan_to_json(plan)) == plan


def test_external_engines_of_the_policy_count_among_those_that_get_weights():
    external = "placement.rollout.external=[{url: 'http://node7:30000/'}, {url: 'http://node8:30000'}]"
    words = ["placement=split_8gpu", "placement.rollout.server_groups=[{type: regular, gpus: 4}]", external]
    plan = load_plan(["+experiment=qwen3_grpo", *words])
    assert [e.url for e in plan.deployment.external] == ["http://node7:30000", "http://node8:30000"]
    shown = render_plan(plan)
    assert "to each of 4 engines" in shown
    assert "external  rollout  sglang    policy at http://node7:30000, attached, sglang-router round_robin" in shown


@pytest.mark.parametrize(
    ("config", "device", "expected"),
    [
        ({"max_position_embeddings": 4096}, "cuda", (4096, False)),
        ({"text_config": {"max_position_embeddings": 512}}, "cuda", (512, False)),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4}}, "cuda", None),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}, "cuda", (4096, False)),
        ({"model_type": "glm_moe_dsa", "max_position_embeddings": 4096, "index_topk": 64}, "cuda", (4096, False)),
        ({"model_type": "glm_moe_dsa", "max_position_embeddings": 4096, "index_topk": 64}, "cpu", (64, True)),
        ({}, "cuda", None),
    ],
)
def test_the_longest_context_is_what_config_json_says(tmp_path, config, device, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = longest_context(tmp_path, device)
    assert (None if found is None else (found.tokens, found.has_to_be_written)) == expected


def test_a_model_of_another_family_or_none_is_no_error(tmp_path):
    assert family_of(tmp_path) is None
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert family_of(tmp_path) == "qwen3"
    assert weight_bytes(None, "bfloat16") == 0


def test_quantised_weights_stay_as_they_are_in_the_files(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", {"a": (100,)}, "F8_E4M3")
    assert weight_bytes(str(tmp_path), "float32") == 100
    write_safetensors(tmp_path / "model.safetensors", {"a": (100,)}, "BF16")
    assert weight_bytes(str(tmp_path), "float32") == 400
