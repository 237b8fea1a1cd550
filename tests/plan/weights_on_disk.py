"""Safetensors files with a true header and, where the weights would be, a hole: any size takes no room on disk."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from rlrun.families import hf_shapes
from rlrun.plan.types import ModelSpec

Shapes = Mapping[str, tuple[int, ...]]
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1}


def write_safetensors(path: Path, shapes: Shapes, dtype: str = "BF16", cut: int = 0) -> None:
    """`cut` bytes are missing at the end."""
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}  # type: ignore[dict-item]
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + end - cut)


def write_shards(folder: Path, shards: Mapping[str, Shapes], **options: int) -> None:
    """Several files and their index."""
    for file, shapes in shards.items():
        write_safetensors(folder / file, shapes, **options)
    index = {name: file for file, shapes in shards.items() for name in shapes}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def qwen3_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    return hf_shapes(spec)
