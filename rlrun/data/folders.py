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
    temporary = Path(begin(str(target)))
    try:
        yield temporary
        _sync_all(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _rename(str(temporary), str(target))


def debris(target: Path) -> list[Path]:
    """What killed processes have left of `target`."""
    return sorted(target.absolute().parent.glob(f".{target.name}.*.tmp"))


def begin(final: str) -> str:
    """An empty folder beside `final`, with a name of its own."""
    temporary = _sibling(final, "tmp")
    os.makedirs(temporary)
    return temporary


def put(temporary: str, final: str) -> None:
    """Gives a complete folder its name, in place of one that may have it already. Everything in it is on the disk when
    it appears."""
    _sync_all(Path(temporary))
    _rename(temporary, final)


def discard(path: str) -> None:
    """Deletes a folder; killed in the middle, it leaves debris, and no half folder under this name."""
    gone = _rename_away(path)
    if gone is not None:
        shutil.rmtree(gone, ignore_errors=True)


def _rename(temporary: str, final: str) -> None:
    gone = _rename_away(final)
    os.rename(temporary, final)
    _sync(Path(final).parent)
    if gone is not None:
        shutil.rmtree(gone, ignore_errors=True)


def _rename_away(path: str) -> str | None:
    if not os.path.isdir(path):
        return None
    gone = _sibling(path, "gone")
    os.rename(path, gone)
    return gone


def _sibling(path: str, kind: str) -> str:
    parent, name = os.path.split(path)
    return os.path.join(parent, f".{name}.{uuid.uuid4().hex[:8]}.{kind}")


def _sync_all(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for file in files:
            _sync(Path(folder) / file)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
