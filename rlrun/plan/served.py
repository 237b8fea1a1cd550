"""What the config.json of a frozen model says about serving it. The model may be of any family that SGLang knows, so
nothing is required of the file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config.arguments.sglang import FAMILY_ON_CPU
from rlrun.families import FAMILIES
from rlrun.plan.weight_files import BITS, read_weight_files


@dataclass(frozen=True)
class LongestContext:
    tokens: int
    why: str
    has_to_be_written: bool = False  # SGLang by itself would allow more


def read_config(folder: Path) -> dict[str, Any]:
    """config.json with the fields of its text model on top; empty when there is none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    nested = config.get("text_config")
    return config | nested | {"model_type": config.get("model_type")} if isinstance(nested, dict) else config


def family_of(folder: Path) -> str | None:
    """The family of rlrun that a model belongs to; None for others."""
    kind = read_config(folder).get("model_type")
    return next((name for name, family in FAMILIES.items() if kind in family.model_types), None)


def longest_context(folder: Path, device: str) -> LongestContext | None:
    """None when nothing bounds it, or config.json does not say so plainly."""
    config = read_config(folder)
    top_k, most = config.get("index_topk"), config.get("max_position_embeddings")
    if device == "cpu" and family_of(folder) in FAMILY_ON_CPU and isinstance(top_k, int):
        why = f"without a GPU its selection of keys is left out, which is exact for up to index_topk = {top_k} tokens"
        return LongestContext(top_k, why, has_to_be_written=True)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else "default"
    if not isinstance(most, int) or kind != "default":  # a scaled rotary embedding reaches further
        return None
    return LongestContext(most, f"its config.json has max_position_embeddings = {most}")


def weight_bytes(path: str | None, dtype: str) -> int:
    """Of one copy of the weights as they are served: floating-point tensors in `dtype`, quantised ones as they are in
    the files. 0 for a model that is not here."""
    if path is None:
        return 0
    served, plain = BITS[{"float32": "F32", "bfloat16": "BF16"}[dtype]], ("F64", "F32", "F16", "BF16")
    stored = read_weight_files(Path(path)).tensors.values()
    return sum(t.size * (served if t.dtype in plain else BITS.get(t.dtype, 8)) // 8 for t in stored)
