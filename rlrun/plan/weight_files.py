"""What the safetensors files of a checkpoint hold, from their headers alone: names, shapes and whether they are whole.

A file begins with the length of its header (8 bytes, little-endian) and the header, JSON: tensor name -> dtype, shape
and place in the rest of the file. Reading headers takes milliseconds where reading weights takes minutes, and no torch.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config.recall import recall, remember, stamp
from rlrun.plan.types import ModelSpec

INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000
"""Bytes; what the format allows."""

DRAFT_LAYERS = ("glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2")
"""Families whose multi-token-prediction layers come after the others, as one more model.layers.N."""
NOT_TRAINED = re.compile(
    r"""(^|\.)(visual|mtp)\.            # vision tower, multi-token prediction
    | \.e_score_correction_bias$        # a buffer of the router
    | rotary_emb\.inv_freq$
    | _scale(_inv)?$ | \.scale_inv$     # of FP8 weights""",
    re.VERBOSE,
)
LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True)
class WeightFiles:
    """`sizes`: elements of every tensor. `faults`: why the files cannot be used as they are, in words."""

    sizes: Mapping[str, int]
    faults: tuple[str, ...]


def has_weights(folder: Path) -> bool:
    return (folder / INDEX).is_file() or any(folder.glob("*.safetensors"))


def only_described(folder: Path) -> bool:
    """Whether a folder has a config.json and nothing to run with: enough for a plan."""
    tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json"))
    return (folder / "config.json").is_file() and not has_weights(folder) and not tokenizer


def missing_shards(folder: Path) -> list[str]:
    """Files that the index names and the folder lacks, or the index itself when it is none."""
    if not (folder / INDEX).is_file():
        return []
    index = _index(folder)
    if not index:
        return [f"{INDEX} (it is there, and is not an index)"]
    return [name for name in sorted(set(index.values())) if not (folder / name).is_file()]


def read_weight_files(folder: Path) -> WeightFiles:
    """Reads the headers of the files that the index names, or of all when there is no index; files that are not there
    are somebody else's to name. Kept as long as the files stay as they are. Never raises."""
    files = sorted([*folder.glob("*.safetensors"), folder / INDEX])
    key, stamps = ("weights", str(folder)), {str(file): stamp(file) for file in files}
    known = recall((key, tuple(stamps)))
    if known is None:
        known = _read(folder)
        remember((key, tuple(stamps)), known, stamps)
    return known


def _read(folder: Path) -> WeightFiles:
    sizes: dict[str, int] = {}
    faults: list[str] = []
    index = _index(folder)
    names = sorted(set(index.values())) if index else sorted(file.name for file in folder.glob("*.safetensors"))
    for name in names:
        if not (folder / name).is_file():
            continue
        try:
            header = _header(folder / name)
        except ValueError as e:
            faults.append(f"{name} {e}")
            continue
        found = {tensor: math.prod(entry["shape"]) for tensor, entry in header.items()}
        absent = sorted(tensor for tensor, shard in index.items() if shard == name and tensor not in found)
        if absent:
            more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            faults.append(f"{name} has no {absent[0]}{more}, which the index places there")
        sizes |= found if not index else {tensor: size for tensor, size in found.items() if index.get(tensor) == name}
    return WeightFiles(sizes, tuple(faults))


def _index(folder: Path) -> dict[str, str]:
    """Tensor -> file; empty without an index that can be read (rules/model.py names a broken one)."""
    try:
        weight_map = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {str(tensor): str(file) for tensor, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _header(path: Path) -> dict[str, Any]:
    """Raises ValueError when the file is cut short or no safetensors file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or (length <= LONGEST_HEADER and size < 8 + length):
            raise ValueError(f"is cut short at {size:,} bytes, within its header")
        if length > LONGEST_HEADER:
            raise ValueError("is no safetensors file")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
            shapes = [size for entry in header.values() for size in entry["shape"]]
            assert all(isinstance(size, int) for size in shapes)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError):
            raise ValueError("is no safetensors file: its header cannot be read") from None
    if size < 8 + length + end:
        raise ValueError(f"is cut short: {size:,} of {8 + length + end:,} bytes")
    return header


def trained(sizes: Mapping[str, int], spec: ModelSpec) -> dict[str, int]:
    """The tensors that count as parameters of the text model: without vision tower, multi-token prediction, scales of
    FP8 weights, buffers, and a stored copy of a tied output layer."""

    def counts(name: str) -> bool:
        layer = LAYER.search(name)
        draft = layer is not None and int(layer.group(1)) >= spec.num_layers and spec.family in DRAFT_LAYERS
        tied_copy = name.endswith("lm_head.weight") and spec.tied_embeddings
        return not (NOT_TRAINED.search(name) or draft or tied_copy)

    return {name: size for name, size in sizes.items() if counts(name)}


def absent_parts(names: Mapping[str, int], spec: ModelSpec) -> list[str]:
    """Parts of the model of which there is no tensor at all."""
    absent = [
        part
        for part, needed in (
            ("embed_tokens.weight", True),
            ("norm.weight", True),
            ("lm_head.weight", not spec.tied_embeddings),
        )
        if needed and not any(name == part or re.search(rf"(^|model\.){re.escape(part)}$", name) for name in names)
    ]
    there = {int(layer.group(1)) for name in names if (layer := LAYER.search(name))}
    layers = [layer for layer in range(spec.num_layers) if layer not in there]
    if layers:
        absent.append(f"layer{'s' if len(layers) > 1 else ''} {_ranges(layers)}")
    return absent


def _ranges(numbers: list[int]) -> str:
    """0, 1, 2, 5 -> `0-2, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
