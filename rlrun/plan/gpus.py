"""Kinds of GPU: memory and speeds, one YAML file each in `hardware/`, which says where its figures are from.

Speeds are those of data sheets; what share of them a phase reaches is in `rlrun.plan.estimate.efficiency`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent / "hardware"


@dataclass(frozen=True)
class Gpu:
    memory_gib: float
    bf16_tflops: float
    hbm_tb_per_s: float
    nvlink_gb_per_s: float  # one direction, to all GPUs of the node together
    network_gb_per_s: float  # one direction
    host_gb_per_s: float  # one direction

    @property
    def flops(self) -> float:
        """Multiplications and additions a second."""
        return self.bf16_tflops * 1e12

    @property
    def hbm(self) -> float:
        """Bytes a second."""
        return self.hbm_tb_per_s * 1e12

    @property
    def host(self) -> float:
        """Bytes a second to host memory, one direction."""
        return self.host_gb_per_s * 1e9

    def link(self, same_node: bool) -> float:
        """Bytes a second to another GPU, of this node or of another."""
        return 1e9 * (self.nvlink_gb_per_s if same_node else self.network_gb_per_s)


@functools.cache
def profiles() -> dict[str, Gpu]:
    """Every kind of GPU by its name in `placement.gpu`."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {
        file.stem: Gpu(**yaml.load(file.read_text(encoding="utf-8"), loader)) for file in sorted(FOLDER.glob("*.yaml"))
    }
