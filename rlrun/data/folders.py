"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlrun.errors import Problem


def refuse(target: Path) -> list[Problem]:
    """What speaks against making a folder of this name."""
    hint = "choose a folder that does not exist yet, or an empty one"
    if target.is_dir() and any(target.iterdir()):
        return [Problem("target-exists", f"{target} exists and is not empty", hint=hint)]
    if target.exists() and not target.is_dir():
        return [Problem("target-exists", f"{target} exists and is not a folder", hint=hint)]
    parent = next((folder for folder in target.absolute().parents if folder.exists()), None)
    if parent is None or not parent.is_dir() or not os.access(parent, os.W_OK):
        return [Problem("target-not-writable", f"{target} cannot be made in {parent}", hint="choose another folder")]
    return []


@contextmanager
def whole(target: Path, replace: bool = False) -> Iterator[Path]:
    """An empty folder beside `target`, hidden, which takes its name when the context is left without an error: then
    everything in it is on the disk. Otherwise it is deleted, and what a killed process leaves is hidden and has another
    name. An existing folder has to be empty, unless it is to be replaced."""
    target = target.absolute()
    assert replace or not refuse(target), f"{target} exists"
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _sibling(target, "tmp")
    temporary.mkdir()
    try:
        yield temporary
        _sync(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    gone = None
    if target.is_dir() and any(target.iterdir()):
        gone = _sibling(target, "gone")
        os.rename(target, gone)
    os.rename(temporary, target)
    _sync_one(target.parent)
    if gone is not None:
        shutil.rmtree(gone, ignore_errors=True)


def debris(target: Path) -> list[Path]:
    """What killed processes have left of `target`."""
    return sorted(target.absolute().parent.glob(f".{target.name}.*.tmp"))


def _sibling(target: Path, kind: str) -> Path:
    return target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.{kind}"


def _sync(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for file in files:
            _sync_one(Path(folder) / file)
        _sync_one(Path(folder))


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
