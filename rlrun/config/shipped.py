"""Where `conf/` and `recipes/` are: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

import rlrun

PACKAGE = Path(rlrun.__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder `conf` or `recipes`."""
    inside = PACKAGE / f"_{name}"
    return inside if inside.is_dir() else PACKAGE.parent / name


def recipe_file(path: str) -> str:
    """Absolute path of a file under recipes/; what `${recipes:quickstart/train.jsonl}` becomes in YAML."""
    return str(shipped("recipes") / path)
