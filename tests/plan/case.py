"""One error code, the words that raise it and the change that cures it. The cases of a subject are a list CASES in
`cases/<subject>.py`; test_checks.py runs all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

QUICK = "+experiment=quickstart"
BIG = "+experiment=qwen3_grpo"


@dataclass(frozen=True)
class Case:
    """`words` raise `code`; with `fix` appended, which is what the hint says, they do not."""

    code: str
    words: Sequence[str]
    fix: Sequence[str] = ()
    prepare: Callable[[Path], None] | None = None
    repair: Callable[[Path], None] | None = None
    config_dir: str | None = None
