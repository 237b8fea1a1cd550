"""What was made of files, kept for the next load of this process and forgotten when one of the files changes.

A sweep, a search for a configuration that fits and a test plan the same experiment many times; reading its files again
is most of the time. What is kept is pickled, so that everybody gets a copy of their own, which for OmegaConf's trees
is also several times faster than `copy.deepcopy`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Hashable, Mapping
from typing import Any

Stamp = tuple[int, int, int] | None
"""Inode, time of the last change in ns and size of a file; None when there is none."""

MOST = 512
"""Entries kept; the oldest goes first."""

_known: dict[Hashable, tuple[bytes, Mapping[str, Stamp]]] = {}


def stamp(path: str | os.PathLike[str]) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def remember(key: Hashable, value: Any, files: Mapping[str, Stamp]) -> None:
    """Keeps a copy of `value`, which was made of these files, as long as they keep their stamps. Take the stamps before
    the files are read: a change in between is then noticed."""
    _known.pop(key, None)
    while len(_known) >= MOST:
        del _known[next(iter(_known))]
    _known[key] = (pickle.dumps(value, pickle.HIGHEST_PROTOCOL), files)


def recall(key: Hashable) -> Any:
    """A copy of what was kept; None when nothing was, or when a file has changed since."""
    entry = _known.get(key)
    if entry is None:
        return None
    value, files = entry
    if any(stamp(path) != was for path, was in files.items()):
        del _known[key]
        return None
    return pickle.loads(value)


def forget() -> None:
    """Everything, as in a new process."""
    _known.clear()
