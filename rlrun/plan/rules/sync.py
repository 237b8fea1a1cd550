"""Weights that travel by disk: the folder, and the keys that they read."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rlrun.errors import Problem
from rlrun.plan.context import Context, absolute
from rlrun.plan.groups import external_policy, has_engines, has_trainer
from rlrun.plan.rules.algo import inactive
from rlrun.plan.rules.files import unusable

TRANSPORT, DIR, BUCKET = "weight_sync.transport", "weight_sync.dir", "weight_sync.bucket_mb"
BY_DISK = ("disk", "delta")
OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Folders that each node has for itself."""


def keys_of_transports(c: Context) -> Iterator[Problem]:
    kind = c.config.weight_sync.transport
    if not _syncs(c):  # every key of the section has a problem of its own then
        return
    if kind not in BY_DISK and c.changed(DIR):
        yield inactive(c, DIR, f"is a folder for files, and {kind} transport writes none", TRANSPORT)
    if kind == "disk" and c.changed(BUCKET):
        yield inactive(c, BUCKET, "is the size of a transfer, and disk transport writes whole checkpoints", TRANSPORT)


def directory(c: Context) -> Iterator[Problem]:
    """The folder can be made, and all nodes see the same one."""
    s, nodes = c.config.weight_sync, c.config.placement.num_nodes
    if s.transport not in BY_DISK or not _syncs(c):
        return
    key, path = (DIR, absolute(s.dir)) if s.dir is not None else ("output_dir", absolute(c.config.output_dir))
    summary = unusable(path, "the weights") if s.dir is not None else None
    if summary is not None:
        yield c.problem("sync-dir-unusable", summary, DIR, hint=f"set {DIR} to a folder you can write to")
        return
    own = next((folder for folder in OF_ONE_NODE if os.path.commonpath([folder, path]) == folder), None)
    if nodes > 1 and own is not None:
        summary = f"weights travel through {path}, and each of {nodes} nodes has a {own} of its own"
        other = "tensor" if c.config.placement.mode == "colocated" else "distributed"
        hint = f"set {DIR} to a folder on a file system that all nodes share, or {TRANSPORT} to {other}"
        yield c.problem("sync-dir-not-shared", summary, key, TRANSPORT, "placement.num_nodes", hint=hint)


def _syncs(c: Context) -> bool:
    return has_trainer(c.config.placement) and has_engines(c.config.placement)


def external_engines(c: Context) -> Iterator[Problem]:
    """What applies changes to an engine's weights runs inside of the engine."""
    if c.config.weight_sync.transport == "delta" and external_policy(c.config.placement):
        summary = "servers that rlrun does not start cannot read its files of changes"
        hint = f"set {TRANSPORT} to disk"
        yield c.problem("delta-external", summary, TRANSPORT, "placement.rollout.external", hint=hint)


RULES = (keys_of_transports, directory, external_engines)
