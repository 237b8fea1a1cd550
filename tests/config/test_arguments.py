"""Arguments of the engines: what the recorded tables say, what rlrun decides in their place, and the hints."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.config.arguments import check
from rlrun.config.arguments.check import check_argument, check_sglang_arguments, matches, offered, owner, refusal, usual
from rlrun.config.arguments.table import table
from rlrun.config.keys import all_keys, argument_at, find_key, open_sections
from rlrun.config.origin import Origins
from rlrun.families import FAMILIES

ENGINES = ["sglang", "megatron"]
SECTION = {engine: section for section, engine in open_sections().items()}
GROUPS = ("CUDA_ONLY", "EXPERTS", "LINEAR_ATTENTION", "INDEXER", "PIPELINE")
YAML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def code(engine: str, name: str, value: object, **options) -> str | None:
    problem = check_argument(engine, name, value, SECTION[engine], Origins(), **options)
    return problem.code if problem else None


def hint(engine: str, name: str) -> str:
    problem = check_argument(engine, name, 1, SECTION[engine], Origins(), own=("mem_fraction_static",))
    assert problem is not None
    assert problem.code == "unknown-key"
    return problem.hint or ""


@pytest.mark.parametrize("engine", ENGINES)
def test_every_owned_argument_exists_and_so_does_the_key_that_decides_it(engine):
    owned = check.ENGINES[engine].OWNED
    assert set(owned) <= set(table(engine).arguments)
    assert set(owned.values()) <= set(all_keys())
    assert [name for name in owned if refusal(engine, name)] == []
    assert {code(engine, name, None) for name in owned} == {"owned-argument"}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_pattern_is_idle(engine):
    settings, names = check.ENGINES[engine], table(engine).arguments
    patterns = [pattern for pattern, _ in settings.REFUSED] + [p for g in GROUPS for p in getattr(settings, g, ())]
    assert [pattern for pattern in patterns if not any(matches(name, [pattern]) for name in names)] == []
    assert set(settings.ALWAYS) <= set(names)
    assert not set(settings.ALWAYS) & set(settings.OWNED)


def test_what_a_family_needs_on_cpu_are_arguments_of_sglang_that_a_run_cannot_set():
    settings = check.ENGINES["sglang"]
    assert set(settings.FAMILY_ON_CPU) <= set(FAMILIES)
    for arguments in settings.FAMILY_ON_CPU.values():
        assert set(arguments) <= set(table("sglang").arguments)
        assert {code("sglang", name, None) for name in arguments} == {"owned-argument"}


@pytest.mark.parametrize("engine", ENGINES)
def test_hints_for_foreign_names_are_needed_and_lead_to_keys_that_exist(engine):
    settings, names = check.ENGINES[engine], set(table(engine).arguments)
    scripts = getattr(settings, "LAUNCH_SCRIPTS", {})
    assert set(scripts.values()) <= set(all_keys())
    assert not (set(scripts) | set(settings.NEEDLESS)) & names
    assert set(table(engine).spellings.values()) <= names
    assert not set(table(engine).spellings) & names


@pytest.mark.parametrize("engine", ENGINES)
def test_the_usual_value_of_an_argument_may_be_repeated(engine):
    wrong = {
        name: code(engine, name, usual(engine, name))
        for name in table(engine).arguments
        if owner(engine, name) is None and table(engine).arguments[name].settable
    }
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_most_of_what_has_no_place_in_rlrun_is_settable(engine):
    assert len(offered(engine)) > {"sglang": 250, "megatron": 20}[engine]


@given(st.text(min_size=1, max_size=30))
def test_a_name_that_no_table_has_is_never_accepted(name):
    for engine in ENGINES:
        if name not in table(engine).arguments:
            assert code(engine, name, None) == "unknown-key"


@given(st.sampled_from(offered("sglang")), YAML)
def test_whatever_is_accepted_has_the_recorded_type(name, value):
    if code("sglang", name, value) is not None:
        return
    kinds = table("sglang").arguments[name].types
    plain = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null", dict: "mapping"}
    found = plain.get(type(value), "list")
    assert any(kind.startswith(found) or (found, kind) == ("int", "float") for kind in kinds)


@pytest.mark.parametrize(
    ("engine", "name", "words"),
    [
        ("sglang", "shedule_policy", "did you mean `rollout.sglang.schedule_policy`?"),
        ("sglang", "mem_fraction_statik", "did you mean `rollout.sglang.mem_fraction_static`?"),
        ("sglang", "--mem-fraction-static", "set rollout.sglang.mem_fraction_static"),
        ("sglang", "schedule-policy", "set rollout.sglang.schedule_policy"),
        ("sglang", "tp-size", "set placement.rollout.gpus_per_engine instead"),
        ("sglang", "tensor_parallel_size", "set placement.rollout.gpus_per_engine instead"),
        ("sglang", "tp_sise", "did you mean `tp_size`? Set placement.rollout.gpus_per_engine instead"),
        ("sglang", "nsa_decode_backend", "SGLang 0.5.15.post1 calls it dsa_decode_backend"),
        ("sglang", "collect_tokens_histogram", "enable_metrics"),
        ("sglang", "zzzzzzzz", "SGLang 0.5.15.post1 has no such argument either"),
        ("megatron", "use_flash_attn", "remove it: attention uses torch's flash kernels"),
        ("megatron", "seq_length", "set rollout.max_response_tokens instead"),
        ("megatron", "moe_aux_loss_coef", "did you mean `trainer.megatron.moe_aux_loss_coeff`?"),
        ("megatron", "weight_deca", "Set algo.weight_decay instead"),
    ],
)
def test_the_hint_for_an_unknown_name_says_what_to_write(engine, name, words):
    assert words in hint(engine, name)


def test_a_caller_may_decide_about_an_argument_itself_and_its_type_is_still_checked():
    def codes(values: dict, allow: tuple[str, ...] = ()) -> list[str]:
        return [p.code for p in check_sglang_arguments(values, "groups.0.sglang", Origins(), allow)]

    assert codes({"disaggregation_mode": "prefill", "page_size": "x"}) == ["owned-argument", "wrong-type"]
    assert codes({"disaggregation_mode": "prefill"}, ("disaggregation_mode",)) == []
    assert codes({"disaggregation_mode": "both"}, ("disaggregation_mode",)) == ["not-allowed"]


def test_a_path_leads_to_an_argument_or_into_its_mapping():
    assert argument_at("rollout.sglang.page_size") == ("rollout.sglang", "page_size")
    assert argument_at("rollout.sglang.page_size.x") is None
    assert argument_at("rollout.sglang.mm_process_config.image") == ("rollout.sglang", "mm_process_config")
    assert argument_at("trainer.page_size") is None
    assert find_key("rollout.sglang.mem_fraction_static").expected == "a number, above 0 and below 1 or null"


def test_what_is_learned_counts_and_how_engines_are_set_up_does_not():
    assert find_key("trainer.megatron.moe_aux_loss_coeff").semantic
    assert not find_key("rollout.sglang.page_size").semantic
    assert not find_key("trainer.recompute").semantic


def test_a_plan_without_such_arguments_reads_no_table():
    script = (
        "from rlrun.plan.build import load_plan\n"
        "from rlrun.config.arguments.table import table\n"
        "load_plan(['+experiment=quickstart']); none = table.cache_info().currsize\n"
        "load_plan(['+experiment=quickstart', 'rollout.sglang.page_size=1']); print(none, table.cache_info().currsize)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split() == ["0", "1"]


def test_recording_imports_no_engine_by_itself():
    script = "import sys, json, rlrun.config.tables.record; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "sglang", "megatron", "numpy"} & set(json.loads(out.stdout))


@pytest.mark.engines
@pytest.mark.parametrize("engine", ENGINES)
def test_the_tables_are_those_of_the_installed_engines(engine):
    script = (
        "import sys; from rlrun.config.tables import record\n"
        f"sys.stdout.write('<<<' + record.text_of(record.{engine}_table()))"
    )
    # Whoever has imported SGLang in this process has switches in the environment that its defaults depend on.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "CUDA_"))}
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300, env=env
    )
    from rlrun.config.tables.record import FILES, HERE

    installed, recorded = out.stdout.split("<<<")[1], (HERE / FILES[engine]).read_text()
    new, old = json.loads(installed), json.loads(recorded)
    rows = {n: (old["arguments"].get(n), new["arguments"].get(n)) for n in {*old["arguments"], *new["arguments"]}}
    assert {name: pair for name, pair in rows.items() if pair[0] != pair[1]} == {}, "recorded, installed"
    assert installed == recorded, "run python -m rlrun.config.tables.record"
