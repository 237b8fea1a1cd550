"""The model families: one file each (facts, name map, traps). To add one: such a file, a conf/model/*.yaml and a
fixture in tests/families. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from rlrun.families.base import COMMON, Family
from rlrun.families.glm4 import GLM4
from rlrun.families.glm4_moe import GLM4_MOE
from rlrun.families.glm_mla import GLM4_MOE_LITE, GLM_MOE_DSA
from rlrun.families.minimax_m2 import MINIMAX_M2
from rlrun.families.qwen3 import QWEN3, QWEN3_MOE
from rlrun.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from rlrun.families.splits import Shape, Weight
from rlrun.plan.parts.model import ModelSpec

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        QWEN3,
        QWEN3_MOE,
        QWEN3_5,
        QWEN3_5_MOE,
        GLM4,
        GLM4_MOE,
        GLM4_MOE_LITE,
        GLM_MOE_DSA,
        MINIMAX_M2,
    )
}


def fields_of(family: str) -> tuple[str, ...]:
    """Fields of `model.architecture` that a family has."""
    return (*COMMON, *FAMILIES[family].fields)


def weights_of(spec: ModelSpec) -> list[Weight]:
    """Everything of a checkpoint that is trained or sent, in the checkpoint's order."""
    return list(FAMILIES[spec.family].weights(spec))


def hf_tensors(spec: ModelSpec) -> Iterator[tuple[str, Shape, Weight]]:
    """Name, shape and owner of every HF tensor, in the order of the checkpoint (tied models have no lm_head)."""
    for weight in weights_of(spec):
        for name, shape in weight.hf.items():
            yield name, shape, weight


def hf_shapes(spec: ModelSpec) -> dict[str, Shape]:
    return {name: shape for name, shape, _ in hf_tensors(spec)}


def hf_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a checkpoint of this shape, without tokenizer ids and dtype."""
    return FAMILIES[spec.family].config_json(spec)


def beside(spec: ModelSpec) -> dict[str, Shape]:
    """Tensors that a checkpoint of random weights needs beside those of `weights_of`, for engines."""
    family = FAMILIES[spec.family]
    return dict(family.beside(spec)) if family.beside is not None else {}


def untrained(spec: ModelSpec) -> tuple[str, ...]:
    """Beginnings of the names of tensors that a checkpoint may hold beside those of `weights_of`: multi-token
    prediction, vision, a sparse attention's indexer."""
    return tuple(prefix.format(layers=spec.num_layers) for prefix in FAMILIES[spec.family].untrained)


def is_untrained(spec: ModelSpec, name: str) -> bool:
    """Whether a tensor is one of those."""
    return any(fnmatchcase(name, f"{prefix}*") for prefix in untrained(spec))
