"""What the safetensors files of a checkpoint hold, from their headers alone: names, shapes and whether they are whole.

A file begins with the length of its header (8 bytes, little-endian) and the header, JSON: tensor name -> dtype, shape
and place in the rest of the file. Reading headers takes milliseconds where reading weights takes minutes, and no torch.
The trainer reads the same headers (`rlrun.backends.megatron.hf_reader`), so a plan and a run judge a checkpoint alike.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.config.recall import recall, remember, stamp

INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000
"""Bytes; what the format allows."""
BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I8": 8, "U8": 8, "BOOL": 8}
BITS |= {"I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64}
"""Of one element, by the names that safetensors gives types; others (4 bits and the like) are not checked."""


@dataclass(frozen=True)
class Stored:
    """One tensor of the files: `dtype` as safetensors spells it, `file` its name in the folder."""

    shape: tuple[int, ...]
    dtype: str
    file: str

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class WeightFiles:
    """`tensors`: by name. `faults`: why the files cannot be used as they are, in words."""

    tensors: Mapping[str, Stored]
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
    tensors: dict[str, Stored] = {}
    faults: list[str] = []
    index = _index(folder)
    placed: dict[str, set[str]] = {}
    for tensor, shard in index.items():
        placed.setdefault(shard, set()).add(tensor)
    for name in sorted(placed) if index else sorted(file.name for file in folder.glob("*.safetensors")):
        if not (folder / name).is_file():
            continue
        try:
            found = _header(folder / name)
        except ValueError as e:
            faults.append(f"{name} {e}")
            continue
        if absent := sorted(placed.get(name, set()) - set(found)):
            faults.append(f"{name} has no {_first(absent)}, which the index places there")
        if index:
            found = {tensor: found[tensor] for tensor in placed[name] if tensor in found}
        elif twice := sorted(set(found) & set(tensors)):
            faults.append(f"{name} has {_first(twice)}, which {tensors[twice[0]].file} has too")
        tensors |= found
    return WeightFiles(tensors, tuple(faults))


def _first(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _index(folder: Path) -> dict[str, str]:
    """Tensor -> file; empty without an index that can be read (rules/model.py names a broken one)."""
    try:
        weight_map = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        return {str(tensor): str(file) for tensor, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _header(path: Path) -> dict[str, Stored]:
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
            found = {tensor: _stored(entry, path.name) for tensor, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError):
            raise ValueError("is no safetensors file: its header cannot be read") from None
    if size < 8 + length + end:
        raise ValueError(f"is cut short: {size:,} of {8 + length + end:,} bytes")
    if size > 8 + length + end:
        raise ValueError(f"is longer than its header says: {size:,} bytes, not {8 + length + end:,}")
    return found


def _stored(entry: Any, file: str) -> Stored:
    shape, dtype, (begin, end) = entry["shape"], entry["dtype"], entry["data_offsets"]
    assert isinstance(dtype, str)
    assert all(isinstance(size, int) for size in shape)
    assert math.prod(shape) * BITS.get(dtype, 8) == (end - begin) * 8 or dtype not in BITS
    return Stored(tuple(shape), dtype, file)
