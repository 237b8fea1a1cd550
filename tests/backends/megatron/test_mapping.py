"""The name map of Qwen3 is that of Hugging Face (all families: test_families.py)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engines


def test_the_expected_names_are_those_of_hugging_face(checkpoints):
    from dataclasses import replace

    from megatron_plans import SPEC
    from megatron_reference import load

    from rlrun.families import hf_shapes

    for name, directory in checkpoints.items():
        shapes = hf_shapes(replace(SPEC, tied_embeddings=name == "tied"))
        expected = {n: tuple(p.shape) for n, p in load(directory).named_parameters()}
        assert shapes == expected
