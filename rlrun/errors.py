"""What a user can fix, as data.

A `Problem` is one thing that is wrong, with its values, where each value came from and one change that would
work. `RlrunError` carries every problem found, so that nothing is reported one at a time. `RunFailed` is a run
that started and broke. Drawing them is the business of `rlrun.plan.render`. Our own mistakes are `assert`s.

Exit codes: 0 fine, 1 a run failed, 2 the configuration is wrong, 130 interrupted by the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

EXIT_OK = 0
EXIT_RUN_FAILED = 1
EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Where:
    """One value and the place that set it, e.g. ``conf/algo/grpo.yaml:7`` and ``algo.group_size: 0``."""

    origin: str
    text: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `code` is kebab-case and documented; `hint` is one change that works."""

    code: str
    summary: str
    where: tuple[Where, ...] = field(default_factory=tuple)
    hint: str | None = None


class RlrunError(Exception):
    """The configuration, or a file it names, is wrong (exit code 2). Holds every problem found."""

    exit_code = EXIT_CONFIG

    def __init__(self, problems: Sequence[Problem] | Problem):
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        assert self.problems, "an RlrunError without a problem"
        super().__init__("; ".join(f"{p.code}: {p.summary}" for p in self.problems))

    def __reduce__(self):  # crosses Ray actor boundaries
        return (type(self), (self.problems,))


class RunFailed(Exception):
    """A run that had started and broke (exit code 1): which part, doing what, why, and what to read next."""

    exit_code = EXIT_RUN_FAILED

    def __init__(self, part: str, summary: str, hint: str | None = None):
        self.part = part
        self.summary = summary
        self.hint = hint
        super().__init__(f"{part}: {summary}" + (f" ({hint})" if hint else ""))

    def __reduce__(self):  # crosses Ray actor boundaries
        return (type(self), (self.part, self.summary, self.hint))
