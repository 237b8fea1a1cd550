"""Weights by disk."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from case import BIG, QUICK, Case

ATTACHED = [
    "placement=train_8gpu",
    "placement.mode=disaggregated",
    "placement.rollout.external=[{url: 'http://10.0.0.7:30000'}]",
]
TWO_NODES = ["placement.num_nodes=2", "placement.trainer.gpus=16", "placement.rollout.gpus=16"]


def taken(folder: Path) -> None:
    (folder / "taken").write_text("")


CASES = [
    Case(
        "sync-dir-unusable",
        [QUICK, "weight_sync.transport=disk", "weight_sync.dir=taken/weights"],
        ["weight_sync.dir=weights"],
        taken,
    ),
    Case(
        "sync-dir-not-shared",
        [BIG, *TWO_NODES, "weight_sync.transport=disk", "output_dir=/tmp/runs"],
        ["weight_sync.transport=tensor"],
    ),
    Case("inactive-key", [QUICK, "weight_sync.dir=weights"], ["weight_sync.dir=null"]),
    Case(
        "inactive-key",
        [QUICK, "weight_sync.transport=disk", "weight_sync.bucket_mb=64"],
        ["weight_sync.bucket_mb=512"],
    ),
    Case("delta-external", [BIG, *ATTACHED, "weight_sync.transport=delta"], ["weight_sync.transport=disk"]),
]
