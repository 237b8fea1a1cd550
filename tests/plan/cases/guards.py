"""Cases of the CPU twin, of sampling and family guards, and of checkpoints on disk."""

from __future__ import annotations

from case import BIG, QUICK, Case

CASES = [
    Case("twin-of-cpu", [QUICK, "+twin=cpu"]),
    Case("unknown-option", [BIG, "+twin=laptop"], ["+twin=cpu"]),
]
