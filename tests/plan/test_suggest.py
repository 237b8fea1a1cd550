from __future__ import annotations

import pytest

from rlrun.cli import main
from rlrun.errors import RlrunError
from rlrun.plan.build import load_plan
from rlrun.plan.suggest import suggest_overrides, without_keys

BIG = "+experiment=qwen3_grpo"
SPLIT_2 = ["placement=split_8gpu", "placement.num_nodes=2", "placement.trainer.gpus=8", "placement.rollout.gpus=8"]


@pytest.mark.parametrize(
    "words",
    [
        [BIG, "trainer.recompute=none"],
        [BIG, "placement.trainer.tp=1", "trainer.recompute=none"],
        [BIG, "model=qwen3_8b"],
        [BIG, "model=qwen3_8b", "trainer.recompute=none", "trainer.max_tokens_per_gpu=65536"],
        [BIG, "trainer.distributed_optimizer=false"],
        [BIG, "algo.kl_coef=0.1"],
        [BIG, "rollout.sglang.mem_fraction_static=null"],
        [BIG, "trainer.batching=padded", "trainer.max_tokens_per_gpu=null", "trainer.micro_batch_size=64"],
        [BIG, *SPLIT_2, "model=qwen3_14b", "placement.gpu=h200_141gb"],
        [BIG, *SPLIT_2, "model=qwen3_14b", "placement.trainer.tp=1"],
    ],
)
def test_what_is_suggested_plans(words):
    overrides = suggest_overrides(words)
    assert overrides is not None
    memory = load_plan([*without_keys(words, overrides), *overrides]).memory
    assert memory is not None
    assert memory.verdict in ("fits", "tight")


def test_a_run_that_fits_is_left_alone(capsys):
    assert suggest_overrides([BIG]) == []
    assert main(["plan", "--suggest", BIG]) == 0
    assert capsys.readouterr().out == "This run fits as it is.\n"
    assert main(["plan", "--suggest", "+experiment=quickstart"]) == 0
    assert "no memory gate" in capsys.readouterr().out


def test_when_nothing_helps_it_says_so(capsys):
    words = [BIG, "model=minimax_m2", "trainer.sequence_parallel=true"]
    assert suggest_overrides(words) is None
    assert main(["plan", "--suggest", *words]) == 0
    assert "more GPUs" in capsys.readouterr().out


def test_the_overrides_are_printed_as_they_are_typed(capsys):
    words = [BIG, "trainer.recompute=none", "trainer.max_tokens_per_gpu=32768"]
    overrides = suggest_overrides(words)
    assert main(["plan", "--suggest", *words]) == 0
    assert f"  {' '.join(overrides or ['none'])}\n" in capsys.readouterr().out


def test_other_problems_come_first():
    with pytest.raises(RlrunError) as e:
        suggest_overrides([BIG, "trainer.recompute=none", "algo.group_size=1"])
    assert [p.code for p in e.value.problems] == ["group-size-too-small"]


def test_suggest_belongs_to_plan_alone(capsys):
    for words in (["run", "--suggest", BIG], ["plan", "--suggest", "--json", BIG], ["plan", "-m", "--suggest", BIG]):
        assert main(words) == 2
        assert "bad-usage" in capsys.readouterr().err


def test_the_share_of_a_server_group_is_changed_where_the_group_has_it():
    groups = "placement.rollout.server_groups"
    own = f"{groups}=[{{type: regular, gpus: 8, sglang: {{mem_fraction_static: 0.9}}}}]"
    found = suggest_overrides(["+experiment=qwen3_grpo", "rollout.sglang.mem_fraction_static=null", own])
    assert found is not None
    assert [override.split("=")[0] for override in found] == [f"{groups}.0.sglang.mem_fraction_static"]
