"""Every error code: what it means, why it is an error and how to fix it. `rlrun explain CODE` prints the paragraph.
The texts are in `rlrun.plan.documented`, by subject."""

from __future__ import annotations

from rlrun.plan.documented import algo, command, deployment, files, machine, memory, model, placement, runs, weights

SUBJECTS = (command, placement, deployment, memory, algo, model, files, machine, weights, runs)

CODES: dict[str, str] = {code: text for subject in SUBJECTS for code, text in subject.CODES.items()}

assert len(CODES) == sum(len(subject.CODES) for subject in SUBJECTS), "a code is documented twice"
