"""Codes of when checkpoints and exports are made, and which of them stay."""

from __future__ import annotations

from case import BIG, QUICK, Case

KEEP = "checkpoint.keep_every"
HF = "checkpoint.hf_interval"

CASES = [
    Case("hf-interval-longer-than-run", [QUICK, "num_steps=20", f"{HF}=21", "checkpoint.hf_at_end=false"], [f"{HF}=5"]),
    Case("hf-interval-longer-than-run", [QUICK, "num_steps=20", f"{HF}=20"], [f"{HF}=5"]),
    Case("hf-interval-longer-than-run", [QUICK, "num_steps=1", f"{HF}=1"], [f"{HF}=null"]),
    Case("keep-every-between-saves", [QUICK, "checkpoint.interval=10", f"{KEEP}=25"], [f"{KEEP}=20"]),
    Case("keep-every-between-saves", [QUICK, "checkpoint.interval=10", f"{KEEP}=5"], [f"{KEEP}=10"]),
    Case(
        "keep-every-between-saves",
        [QUICK, "checkpoint.interval=2", f"{HF}=3", "checkpoint.hf_keep=1", f"{KEEP}=4"],
        [f"{KEEP}=6"],
    ),
    Case("inactive-key", [QUICK, "checkpoint.interval=null", f"{KEEP}=5"], [f"{KEEP}=null"]),
    Case("inactive-key", [QUICK, "checkpoint.interval=null", f"{HF}=5", f"{KEEP}=5"], [f"{KEEP}=null"]),
    Case("inactive-key", [QUICK, "checkpoint.hf_keep=2"], ["checkpoint.hf_keep=null"]),
    Case(
        "inactive-key",
        [QUICK, "checkpoint.interval=null", "checkpoint.async_save=true"],
        ["checkpoint.async_save=false"],
    ),
    Case(
        "host-memory-does-not-fit",
        [BIG, "placement.host_memory_gib=220", "trainer.offload=true", "checkpoint.gather=host",
         "checkpoint.interval=10", "checkpoint.async_save=true"],
        ["checkpoint.async_save=false"],
    ),
]  # fmt: skip
