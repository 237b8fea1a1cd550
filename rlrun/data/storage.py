"""Groups in a file, for a checkpoint: what is read back is equal, bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlrun.data.types import Group, Prompt, Sample

PER_TOKEN = {"tokens": np.int64, "loss_mask": np.int8, "rollout_logprobs": np.float32}


def save_groups(path: str, groups: Sequence[Group]) -> None:
    """An .npz of one array for each per-token field, all samples end to end, and the rest as JSON."""
    samples = [sample for group in groups for sample in group.samples]
    arrays: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, kind), *(getattr(s, name) for s in samples)]).astype(kind)
        for name, kind in PER_TOKEN.items()
    }
    rest = [{"prompt": asdict(group.prompt), "samples": [_rest(s) for s in group.samples]} for group in groups]
    arrays["rest"] = np.frombuffer(json.dumps(rest).encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())


def _rest(sample: Sample) -> dict[str, Any]:
    fields = {name: value for name, value in vars(sample).items() if name not in PER_TOKEN}
    return {**fields, "num_tokens": len(sample.tokens)}


def load_groups(path: str) -> list[Group]:
    with np.load(path) as file:
        rest = json.loads(file["rest"].tobytes())
        arrays = {name: file[name] for name in PER_TOKEN}
    groups, start = [], 0
    for group in rest:
        samples = []
        for fields in group["samples"]:
            end = start + fields.pop("num_tokens")
            samples.append(Sample(**fields, **{name: array[start:end] for name, array in arrays.items()}))
            start = end
        groups.append(Group(_prompt(group["prompt"]), samples))
    return groups


def _prompt(fields: dict[str, Any]) -> Prompt:
    lists = ("messages", "token_ids", "response_ids")
    return Prompt(**{**fields, **{name: tuple(fields[name]) for name in lists if name in fields}})
