from __future__ import annotations

import re

import pytest

from rlrun.config.keys import all_keys
from rlrun.errors import RlrunError
from rlrun.plan.codes import CODES
from rlrun.plan.explain import explain


def test_a_key_has_its_documentation_value_origin_and_default():
    assert explain("algo.clip_high", ["+experiment=quickstart", "algo.clip_high=0.28"]) == (
        "algo.clip_high\n  The policy ratio is clipped above at 1 + clip_high.\n  Expects a number, above 0.\n"
        "  0.28   command line   (default 0.2)"
    )


@pytest.fixture(scope="module")
def explained() -> dict[str, str]:
    """Every key, without an experiment."""
    return {path: explain(path, []) for path in all_keys()}


def test_every_key_of_the_schema_is_explained(explained):
    for path, text in explained.items():
        assert text.startswith(path)
        assert all_keys()[path].doc.split(" ")[0] in text


def test_every_code_is_explained():
    for code, doc in CODES.items():
        assert explain(code, []).split()[1:] == doc.split()


def test_a_wrong_value_elsewhere_does_not_hide_an_explanation():
    assert "0.001" in explain("algo.lr", ["+experiment=quickstart", "algo.lr=0.001", "algo.group_size=zero", "+typo=1"])
    assert "no usable value   command line" in explain("algo.lr", ["algo.lr=fast"])


ARGUMENTS = {
    "rollout.sglang.schedule_policy": (
        "rollout.sglang.schedule_policy\n  Argument of SGLang 0.5.15.post1 (--schedule-policy).\n"
        "  Expects one of lpm, random, fcfs, dfs-weight, lof, priority, routing-key.\n"
        "  lpm   command line   (default fcfs)"
    ),
    "trainer.megatron.moe_aux_loss_coeff": (
        "trainer.megatron.moe_aux_loss_coeff\n  Argument of megatron-core 0.16.1 (TransformerConfig).\n"
        "  Expects a number or a list of numbers.\n  0   (default 0)"
    ),
    "trainer.megatron.params_dtype": "  Argument of megatron-core 0.16.1 (TransformerConfig, OptimizerConfig). Not set",
    "trainer.megatron.lr": "Not set here: algo.lr decides it.",
    "trainer.megatron.deterministic_mode": "rlrun sets it to true; its\n  own default is false.",
    "trainer.megatron.timers": "An object of Python, which YAML cannot write.",
    "rollout.sglang.load_format": "It cannot be changed: a\n  server starts from the run's checkpoint",
}


@pytest.mark.parametrize("path", list(ARGUMENTS))
def test_an_argument_of_an_engine_is_explained_from_the_recorded_table(path):
    text = explain(path, ["+experiment=quickstart", "rollout.sglang.schedule_policy=lpm"])
    assert " ".join(ARGUMENTS[path].split()) in " ".join(text.split())


def test_an_open_section_lists_what_was_set_and_what_may_be():
    text = explain("rollout.sglang", ["+experiment=quickstart", "rollout.sglang.page_size=16"])
    assert re.search(r"\n  page_size +16 ", text)
    title = "arguments of SGLang 0.5.15.post1, explained by `rlrun explain rollout.sglang.NAME`:"
    assert title in " ".join(text.split())
    assert " schedule_policy," in text
    assert " tp_size," not in text
    assert " moe_aux_loss_coeff," in explain("trainer.megatron", [])


@pytest.mark.parametrize(("typed", "meant"), [("algo.clip_hi", "algo.clip_high"), ("unknown-keys", "unknown-key")])
def test_a_mistyped_name_is_corrected(typed, meant):
    with pytest.raises(RlrunError) as e:
        explain(typed, [])
    assert e.value.problems[0].hint == f"did you mean `{meant}`?"


def test_explanations_fit_100_columns(explained):
    for path, text in explained.items():
        assert max(map(len, text.splitlines())) <= 100, path
