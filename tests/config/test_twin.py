"""The rules of `+twin=cpu`, on configurations; tests/plan/test_twin.py plans them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.config.keys import all_keys
from rlrun.config.load import expand_sweep, load, reload
from rlrun.config.origin import show
from rlrun.config.schema import RunConfig
from rlrun.config.twin import _two_ranks, cpu_twin

BIG = "+experiment=qwen3_grpo"
SPLIT = "placement=split_8gpu"
TWIN = "+twin=cpu"
TINY = {"name": "tiny", "family": "qwen3", "init": "random", "alphabet": "01", "architecture": {"vocab_size": 5}}
DATA = {"train": {"path": "train.jsonl"}, "eval": {"path": "eval.jsonl"}}


def config_of(*words: str) -> RunConfig:
    loaded = load([BIG, *words])
    assert loaded.problems == ()
    assert isinstance(loaded.config, RunConfig)
    return loaded.config


def changes(*words: str, fixed: tuple[str, ...] = ()) -> dict[str, Any]:
    return cpu_twin(config_of(*words), TINY, DATA, "m:f", lambda key: key in fixed)


def test_what_is_learned_stays_and_only_its_size_changes():
    kept = ("algo.lr", "algo.kl_coef", "algo.advantage", "algo.clip_low", "weight_sync.transport", "placement.mode",
            "async_mode.max_staleness", "trainer.recompute", "rollout.temperature", "seed")  # fmt: skip
    words = [SPLIT, "algo.lr=0.25", "algo.kl_coef=0.5", "rollout.temperature=0.75", "seed=77"]
    assert set(changes(*words)) & set(kept) == set()


def test_every_changed_key_is_one_of_the_schema_and_its_value_is_another_one():
    config = config_of()
    for key, value in changes().items():
        node: Any = config
        for name in key.split("."):
            node = getattr(node, name)
        assert all_keys()[key].section is None
        assert value != node, key


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # tp, pp, ep, gpus, cp
        ((1, 1, 1, 1, 1), {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 1}),
        ((2, 1, 1, 8, 1), {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 2}),
        ((4, 1, 1, 8, 1), {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 1}),
        ((2, 2, 1, 8, 1), {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 1}),
        ((1, 4, 1, 8, 1), {"tp": 1, "pp": 2, "cp": 1, "ep": 1, "dp": 1}),
        ((1, 1, 8, 8, 1), {"tp": 1, "pp": 1, "cp": 1, "ep": 2, "dp": 2}),
        ((2, 1, 4, 8, 1), {"tp": 1, "pp": 1, "cp": 1, "ep": 2, "dp": 2}),
        ((2, 1, 1, 8, 2), {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 1}),
        ((1, 1, 1, 4, 4), {"tp": 1, "pp": 1, "cp": 2, "ep": 1, "dp": 1}),
    ],
)
def test_the_largest_kind_of_parallelism_keeps_two_ranks(sizes, expected):
    assert _two_ranks(*sizes) == expected


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 16), st.sampled_from([1, 2, 4, 8]))
def test_a_twin_has_as_many_optimizer_steps_a_rollout_and_fits_the_quickstarts_data(steps, groups, size, tp):
    words = [f"algo.prompts_per_rollout={steps * groups}", f"algo.groups_per_step={groups}", f"algo.group_size={size}"]
    found = changes(*words, f"placement.trainer.tp={tp}")
    prompts = found.get("algo.prompts_per_rollout", steps * groups)
    step = found.get("algo.groups_per_step", groups)
    assert prompts == steps * step
    assert prompts <= 64
    assert found.get("algo.group_size", size) == min(size, 4)


@given(st.data())
def test_a_fixed_key_is_left_alone_and_no_value_depends_on_whether_it_would_have_changed(data):
    every = changes()
    fixed = tuple(data.draw(st.lists(st.sampled_from(sorted(every)), unique=True, max_size=5)))
    assert set(changes(fixed=fixed)) & set(fixed) == set()


def test_the_origin_of_a_changed_value_names_the_twin_and_what_it_was():
    plain, twin = load([BIG]), load([BIG, TWIN])
    assert twin.problems == ()
    assert twin.twin == "qwen3_grpo"
    assert twin.origins.of("num_steps") == "twin cpu, was 200"
    assert twin.origins.of("trainer.recompute") == plain.origins.of("trainer.recompute")

    def leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            inner = isinstance(value, dict) and value and name != "arguments"
            found |= leaves(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
        return found

    before, after = leaves(plain.values), leaves(twin.values)
    for key, value in after.items():
        was = before.get(key, all_keys()[key].default)
        origin = f"twin cpu, was {show(was)}" if value != was else plain.origins.of(key)
        assert twin.origins.of(key) == origin, key


def test_the_command_line_wins_and_the_rest_is_scaled_around_it():
    loaded = load([BIG, TWIN, "num_steps=2", "placement.trainer.tp=2", "algo.groups_per_step=2"])
    assert isinstance(loaded.config, RunConfig)
    config = loaded.config
    assert (config.num_steps, config.placement.trainer.tp, config.placement.trainer.gpus) == (2, 2, 2)
    assert (config.algo.groups_per_step, config.algo.prompts_per_rollout) == (2, 64)
    assert loaded.origins.of("num_steps") == "command line"


def test_a_value_that_refers_to_a_scaled_one_follows_it():
    loaded = load([BIG, TWIN, "checkpoint.keep=${rollout.max_prompt_tokens}"])
    assert isinstance(loaded.config, RunConfig)
    assert loaded.config.checkpoint.keep == loaded.config.rollout.max_prompt_tokens == 16


def test_a_random_model_keeps_its_shape_and_its_task():
    loaded = load(["+experiment=quickstart", "placement=gpu_1", TWIN])
    plain = load(["+experiment=quickstart"])
    assert isinstance(loaded.config, RunConfig)
    assert loaded.config.model == plain.config.model
    assert loaded.config.reward == plain.config.reward
    assert loaded.config.data == plain.config.data
    assert loaded.config.placement.device == "cpu"


@pytest.mark.parametrize("word", ["twin=cpu", "+twin=cpu", "++twin=cpu"])
def test_a_plus_makes_no_difference(word):
    assert load([BIG, word]).values == load([BIG, TWIN]).values


@pytest.mark.parametrize("word", ["twin=null", "~twin"])
def test_no_twin_is_the_experiment_itself(word):
    assert load([BIG, word]) == load([BIG])


def test_an_option_that_does_not_exist_and_a_second_choice_are_refused():
    assert [(p.code, p.hint) for p in load([BIG, "+twin=gpu"]).problems] == [("unknown-option", "write +twin=cpu")]
    assert [p.code for p in load([BIG, TWIN, "twin=cpu"]).problems] == ["chosen-twice"]


def test_what_is_wrong_before_scaling_is_said_and_nothing_else():
    assert [p.code for p in load([BIG, TWIN, "algo.lr=fast", "algo.typo=1"]).problems] == ["unknown-key", "wrong-type"]


def test_a_sweep_may_have_the_twin_as_a_word_or_as_an_axis():
    assert expand_sweep([BIG, TWIN, "seed=1,2"]) == [[BIG, TWIN, f"seed={seed}"] for seed in (1, 2)]
    assert expand_sweep([BIG, "+twin=cpu,null"]) == [[BIG, "+twin=cpu"], [BIG, "+twin=null"]]


def test_a_run_that_exists_stays_a_twin_and_does_not_become_one():
    values = load([BIG, TWIN]).values
    assert reload(values, "plan.json", [], "qwen3_grpo", "qwen3_grpo").twin == "qwen3_grpo"
    found = reload(load([BIG]).values, "plan.json", [TWIN], "qwen3_grpo")
    assert [p.code for p in found.problems] == ["choice-not-possible"]
