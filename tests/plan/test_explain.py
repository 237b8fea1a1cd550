from __future__ import annotations

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


@pytest.mark.parametrize(("typed", "meant"), [("algo.clip_hi", "algo.clip_high"), ("unknown-keys", "unknown-key")])
def test_a_mistyped_name_is_corrected(typed, meant):
    with pytest.raises(RlrunError) as e:
        explain(typed, [])
    assert e.value.problems[0].hint == f"did you mean `{meant}`?"


def test_explanations_fit_100_columns(explained):
    for path, text in explained.items():
        assert max(map(len, text.splitlines())) <= 100, path
