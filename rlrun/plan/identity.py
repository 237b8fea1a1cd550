"""What makes two runs the same experiment: a hash over the values that decide what is learned."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rlrun.config.keys import find_key, open_sections
from rlrun.config.schema import RunConfig
from rlrun.plan.context import Context, absolute

DIGITS = 12
FROZEN = ("reference_path", "teacher_path")
"""Keys of algo that name the folder of a model."""


def resolved(c: Context) -> dict[str, Any]:
    """Every key with its value; paths absolute and the architecture as found, so that it means the same anywhere."""
    config = c.config
    assert isinstance(config, RunConfig)
    values = config.model_dump(mode="json")
    values["output_dir"] = absolute(config.output_dir)
    if config.weight_sync.dir is not None:
        values["weight_sync"]["dir"] = absolute(config.weight_sync.dir)
    for dataset in (values["data"]["train"], values["data"]["eval"]):
        if dataset is not None:
            dataset["path"] = absolute(dataset["path"])
    for name in FROZEN:
        if values["algo"][name] is not None:
            values["algo"][name] = absolute(values["algo"][name])
    if c.model_dir is not None:
        values["model"]["path"] = c.model_dir
        values["model"]["architecture"] = dict(c.found)
    if c.critic_dir is not None:
        values["critic"]["path"] = c.critic_dir
    return values


def config_hash(c: Context, dtype: str) -> str:
    """12 hex digits of sha256 over the semantic values as canonical JSON.

    Placement, deadlines, labels and the like are left out (`semantic: False` in the schema). Files count by content,
    so the hash is the same on another machine: data by sha256; a local model by its config.json and the names and
    sizes of its weight files, because hashing gigabytes would take longer than planning.
    """
    values = _semantic(resolved(c), "")
    values["model"]["dtype"] = dtype
    architecture = values["model"]["architecture"]  # without what other families have: old hashes stay as they were
    values["model"]["architecture"] = {name: value for name, value in architecture.items() if value is not None}
    if values["data"]["train"]["response_key"] is None:
        del values["data"]["train"]["response_key"]
    # Which frozen models there are decides what is learned; on how many GPUs each is served does not.
    values["rollout"]["models"] = {name: model["path"] for name, model in values["rollout"]["models"].items()}
    if not values["rollout"]["models"]:
        del values["rollout"]["models"]
    for name in ("train", "eval"):
        rows = c.rows(name)
        if rows is not None:
            values["data"][name]["path"] = f"sha256:{rows.sha256}"
    if c.model_dir is not None:
        values["model"]["path"] = f"sha256:{_checkpoint_digest(Path(c.model_dir))}"
    if c.critic_dir is not None:
        values["critic"]["path"] = f"sha256:{_checkpoint_digest(Path(c.critic_dir))}"
    for name in FROZEN:
        if values["algo"][name] is not None:
            values["algo"][name] = f"sha256:{_checkpoint_digest(Path(values['algo'][name]))}"
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:DIGITS]


def _semantic(values: dict[str, Any], prefix: str, whole: bool = True) -> dict[str, Any]:
    """The semantic keys of a section: all of them (`whole`), or only those away from their defaults, in a section that
    otherwise is not semantic or that takes arguments of an engine."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        key = find_key(f"{prefix}{name}")
        assert key is not None, f"{prefix}{name}"
        if key.section is not None and value is not None:
            inside = key.semantic and key.path not in open_sections()
            value = _semantic(value, f"{key.path}.", inside)
            if value or inside:
                kept[name] = value
            continue
        if not key.semantic or (not whole and value == key.default):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and key.expected.startswith("a number"):
            value = float(value)  # 1 and 1.0 are the same learning rate
        kept[name] = value
    return kept


def _checkpoint_digest(folder: Path) -> str:
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    return digest.hexdigest()
