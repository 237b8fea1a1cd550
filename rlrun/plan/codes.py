"""Every error code: what it means, why it is an error and how to fix it. `rlrun explain CODE` prints the paragraph.
The texts are in `rlrun.plan.documented`, by subject."""

from __future__ import annotations

from rlrun.plan.documented import (
    algo,
    arguments,
    async_mode,
    command,
    deployment,
    files,
    machine,
    memory,
    model,
    placement,
    runs,
    sampling,
    time,
    weights,
)

SUBJECTS = (
    command,
    arguments,
    placement,
    deployment,
    memory,
    time,
    algo,
    async_mode,
    sampling,
    model,
    files,
    machine,
    weights,
    runs,
)

CODES: dict[str, str] = {code: text for subject in SUBJECTS for code, text in subject.CODES.items()}

assert len(CODES) == sum(len(subject.CODES) for subject in SUBJECTS), "a code is documented twice"
