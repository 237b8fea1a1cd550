"""The commands that README tells a reader to type."""

from __future__ import annotations

import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    """Words of every indented README line that starts with a program we ship, comments cut off."""
    found = []
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("    ") and line.split()[:1] in (["rlrun"], ["make"]):
            found.append(shlex.split(line, comments=True))
    return found
