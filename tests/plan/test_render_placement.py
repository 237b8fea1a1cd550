"""The map of a plan, letter by letter."""

from __future__ import annotations

import dataclasses
from textwrap import dedent

from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.plan.build import load_plan
from rlrun.plan.parts.critic import CriticPlan
from rlrun.plan.parts.rollout import DeploymentPlan, GroupPlan
from rlrun.plan.parts.train import Slot
from rlrun.plan.render import plan_document, render_plan
from rlrun.plan.render_placement import map_lines, map_rows

BIG = "+experiment=qwen3_grpo"
SPLIT = load_plan([BIG, "placement=split_8gpu"])


def drawn(plan) -> str:
    return "\n".join(map_lines(plan, 100))


def text(lines: str) -> str:
    return "\n".join(f"  {line}" for line in dedent(lines).strip().splitlines())


def test_prefill_decode_placeholder_and_reserved_gpus_are_told_apart():
    groups = "[{type: prefill, gpus: 2, gpus_per_engine: 2}, {type: placeholder, gpus: 1}, {type: decode, gpus: 2}]"
    sizes = ["placement.num_nodes=2", "placement.rollout.gpus=5", "placement.gpus_per_node=6"]
    reserved = "placement.reserved=[{node: 1, gpus: [5], what: judge}]"
    plan = load_plan(["+experiment=qwen3_pd", *sizes, f"placement.rollout.server_groups={groups}", reserved])
    assert drawn(plan) == text("""
        GPU     0  1  2  3  4  5
        node 0  T0 T1 T2 T3 P0 P0
        node 1  -  D1 D2 .  .  x
        T trainer rank, P prefill engine, D decode engine, . idle, - placeholder, x judge (node 1)
        slots count free GPUs node by node; nodes are in the order of their addresses, GPUs of their CUDA ids
        """)


def test_nodes_whose_rows_say_the_same_are_one_row():
    words = ["placement=split_8gpu", "placement.num_nodes=5", "placement.trainer.gpus=8", "placement.rollout.gpus=32"]
    lines = map_lines(load_plan([BIG, *words, "placement.rollout.gpus_per_engine=32"]), 100)
    assert lines[1].startswith("  node 0    T0 T1")
    assert lines[2] == "  node 1-4  E0 E0 E0 E0 E0 E0 E0 E0"
    assert not lines[3].startswith("  node")


def test_sixteen_nodes_are_one_row_each_within_the_width():
    words = ["placement.num_nodes=16", "placement.trainer.gpus=128", "placement.rollout.gpus=128"]
    lines = map_lines(load_plan([BIG, *words]), 100)
    assert [line.split()[1] for line in lines[1:17]] == [str(node) for node in range(16)]
    assert lines[16].endswith("T127+E127")
    assert max(map(len, lines)) <= 100


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 24), st.data())
def test_every_engine_and_rank_is_drawn_once_for_each_of_its_slots_and_no_line_is_too_long(nodes, per_node, data):
    total = nodes * per_node
    trainer = data.draw(st.integers(0, total))
    held = data.draw(st.integers(0, total))
    plan = dataclasses.replace(
        SPLIT,
        num_nodes=nodes,
        gpus_per_node=per_node,
        slots=tuple(Slot(i, i // per_node, i % per_node) for i in range(total)),
        train=dataclasses.replace(SPLIT.train, slots=tuple(range(trainer))),
        engines=tuple(dataclasses.replace(SPLIT.engines[0], index=i, slots=(i,)) for i in range(total)),
        deployment=DeploymentPlan(groups=(GroupPlan("hold", "placeholder", "policy", tuple(range(held)), ()),)),
    )
    cells = [part for row in map_rows(plan) for cell in row for part in cell.split("+")]
    assert sorted(cells) == sorted(
        [*(f"T{i}" for i in range(trainer)), *(f"E{i}" for i in range(total)), *["-"] * held]
    )
    lines = map_lines(plan, 100)
    assert max(map(len, lines)) <= 100
    drawn_cells = " ".join(line for line in lines if line.lstrip().startswith("node")).split()
    assert sum(cell.startswith(("T", "E")) for cell in drawn_cells) == total


def test_the_plan_shows_the_map_and_json_has_its_cells():
    assert "Map\n  GPU     0" in render_plan(SPLIT)
    assert plan_document(SPLIT)["map"] == [["T0", "T1", "T2", "T3", "E0", "E0", "E1", "E1"]]


def test_the_critic_lives_where_the_trainer_does():
    words = ["placement.num_nodes=16", "placement.trainer.gpus=128", "placement.rollout.gpus=128"]
    plan = load_plan([BIG, *words])
    optimizer = plan.algo.optimizer
    plan = dataclasses.replace(plan, critic=CriticPlan(None, 0.2, 0, optimizer))
    assert map_rows(plan)[0][:2] == ["T0+C0+E0", "T1+C1+E1"]
    lines = map_lines(plan, 100)
    assert max(map(len, lines)) <= 100, "a row that is too wide goes on below"
    assert any(line.endswith("T127+C127+E127") for line in lines)
    assert "  T trainer rank, C critic rank, E engine" in lines


def test_one_slot_needs_no_map():
    assert "Map" not in render_plan(load_plan(["+experiment=quickstart"]))


def test_rows_of_processes_name_groups_models_and_servers():
    groups = "[{type: regular, gpus: 2}, {type: regular, gpus: 2, model: judge, gpus_per_engine: 2}]"
    models = "rollout.models={judge: {path: Qwen/Qwen3-8B}, search: {path: Qwen/Qwen3-4B}}"
    external = "placement.rollout.external=[{url: 'http://node7:30000', model: search}]"
    graded = "reward.function=rlrun.agents.judges:graded"
    words = ["+experiment=qwen3_pd", f"placement.rollout.server_groups={groups}", models, external, graded]
    shown = render_plan(load_plan(words))
    assert "GPU 4-5   rollout  sglang    2 engines x 1 GPU, triton attention, sglang-router round_robin" in shown
    assert "GPU 6-7   regular  sglang    judge, 1 engine x 2 GPUs (tp 2), triton attention" in shown
    assert "external  rollout  sglang    search at http://node7:30000, attached" in shown
    assert "nccl, 8.0 GB bfloat16 each step, to each of 2 engines" in shown
