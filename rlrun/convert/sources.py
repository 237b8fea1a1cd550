"""Where a Megatron checkpoint is, and the Hugging Face checkpoint that it comes from."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rlrun.errors import Problem, RlrunError

WEIGHTS = "megatron"
SIDE = "hf"
"""Folders of a converted checkpoint: the weights; config.json, tokenizer, and the tensors that are not trained."""
RECORD = "converted.json"
"""How the Hugging Face checkpoint was stored, for the way back."""
STEP = re.compile(r"^step_(\d{6,})$")


@dataclass(frozen=True)
class MegatronSource:
    """`weights`: the folder of `dist_checkpointing`. `origin`: a folder with config.json. `record`: how the origin
    stores its tensors, where that is known."""

    weights: Path
    origin: Path
    record: dict[str, object] | None = None


def resolve(source: Path, origin: Path | None) -> MegatronSource:
    """`source` is a folder that hf-to-megatron made, a run (its newest checkpoint counts), one of its checkpoints, or
    the `megatron` folder of one. RlrunError when it is none, or has no origin."""
    if (source / RECORD).is_file():
        record = json.loads((source / RECORD).read_text(encoding="utf-8"))
        return MegatronSource(source / WEIGHTS, origin or source / SIDE, record if origin is None else None)
    weights = _weights(source)
    return MegatronSource(weights, origin or _origin(weights))


def _weights(source: Path) -> Path:
    if (source / "checkpoints").is_dir():
        steps = sorted((int(m[1]), p) for p in (source / "checkpoints").iterdir() if (m := STEP.match(p.name)))
        if not steps:
            hint = "give a run that has saved a checkpoint"
            raise RlrunError(Problem("no-checkpoint", f"{source} has no checkpoint", hint=hint))
        source = steps[-1][1]
    return source / WEIGHTS if (source / WEIGHTS).is_dir() else source


def _origin(weights: Path) -> Path:
    """Of a run's checkpoint, from its plan.json: RUN/checkpoints/step_N/megatron."""
    run = weights.parents[2]
    hint = "name the Hugging Face checkpoint that the run began with: --origin DIR"
    try:
        model = json.loads((run / "plan.json").read_text(encoding="utf-8"))["model"]
        path = str(run / "model") if model["init"] == "random" else os.path.expanduser(model["path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        summary = f"{weights} is in no run's folder, so nothing says which model it is"
        raise RlrunError(Problem("origin-not-found", summary, hint=hint)) from error
    found = Path(path) if os.path.isdir(path) else _fetched(path)
    if found is None:
        raise RlrunError(Problem("origin-not-found", f"the run began with {path}, which is not here", hint=hint))
    return found


def _fetched(hub_id: str) -> Path | None:
    """A model of the Hub that is on this disk already."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(hub_id, local_files_only=True))
    except Exception:  # not there, or no name of a model
        return None
