"""The frozen models beside the policy, read from folders of their own: reference and teacher."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from rlrun.errors import Problem, RlrunError
from rlrun.plan.context import Context, absolute
from rlrun.plan.model_spec import spec_from_directory
from rlrun.plan.rules.model import incomplete
from rlrun.plan.rules.placement import trainer_tp_sizes
from rlrun.plan.rules.policy import uses_reference

REFERENCE, TEACHER = "algo.reference_path", "algo.teacher_path"


def readable(c: Context) -> Iterator[Problem]:
    a = c.config.algo
    for key, used in ((REFERENCE, uses_reference(a)), (TEACHER, a.opd_coef > 0)):
        written = c.value(key)
        if written is None or not used:  # rules/policy.py speaks of a model without use
            continue
        folder = absolute(written)
        try:
            spec_from_directory(folder, c.config.model.family)
        except RlrunError as e:
            for p in e.problems:
                hint = f"set {key} to the local folder of a checkpoint of family {c.config.model.family}"
                yield c.problem(p.code, p.summary, key, "model.family", hint=hint)
        else:
            yield from incomplete(c, Path(folder), key)


def reference(c: Context) -> Iterator[Problem]:
    """The reference is loaded into the same network as the policy."""
    if c.config.algo.reference_path is None:
        return
    ours, theirs = dataclasses.asdict(c.spec), dataclasses.asdict(c.reference)
    differ = [f"{name} {theirs[name]} (not {ours[name]})" for name in ours if ours[name] != theirs[name]]
    if differ:
        summary = f"the reference has another architecture than the policy: {', '.join(differ)}"
        hint = f"set {REFERENCE} to null, or to a checkpoint of the same architecture"
        yield c.problem("reference-mismatch", summary, REFERENCE, "model.path", hint=hint)


def teacher(c: Context) -> Iterator[Problem]:
    """The teacher scores the policy's own tokens, on the policy's own ranks."""
    if c.config.algo.teacher_path is None:
        return
    spec, t = c.teacher, c.config.placement.trainer
    hint = f"set {TEACHER} to a checkpoint with the policy's tokenizer"
    if spec.vocab_size != c.spec.vocab_size:
        summary = f"the teacher has {spec.vocab_size} tokens, the policy {c.spec.vocab_size}"
        yield c.problem("teacher-tokenizer", summary, TEACHER, "model.path", hint=hint)
    elif c.model_dir is not None and _tokenizer(c.model_dir) != _tokenizer(absolute(c.config.algo.teacher_path)):
        summary = "teacher and policy have different tokenizer.json files, so the same ids mean different texts"
        yield c.problem("teacher-tokenizer", summary, TEACHER, "model.path", hint=hint)
    uneven = [f"{size} {name}" for name, size in trainer_tp_sizes(spec, t.tp).items() if size % t.tp]
    uneven += [f"{spec.num_layers} layers"] if spec.num_layers % t.pp else []
    if uneven:
        summary = f"tp {t.tp} x pp {t.pp} cannot share the teacher's {', '.join(uneven)} equally"
        keys = (TEACHER, "placement.trainer.tp", "placement.trainer.pp")
        hint = "set placement.trainer.tp and placement.trainer.pp to 1, or to sizes that divide both models"
        yield c.problem("teacher-indivisible", summary, *keys, hint=hint)
    if t.cp > 1 and spec.linear_attention is not None:
        summary = "the teacher's gated delta nets run through a sample, and context parallelism would cut it"
        hint = "set placement.trainer.cp to 1"
        yield c.problem("cp-unsupported", summary, "placement.trainer.cp", TEACHER, hint=hint)


def _tokenizer(folder: str) -> str | None:
    path = os.path.join(folder, "tokenizer.json")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if os.path.isfile(path) else None


RULES = (readable, reference, teacher)
