"""Codes: memory."""

from __future__ import annotations

CODES: dict[str, str] = {
    "memory-does-not-fit": (
        "By the closed forms of rlrun/plan/memory.py a phase takes more memory than placement.gpu has, so the run "
        "would end out of memory. The message names the phase and its largest term, the hint the two cheapest "
        "changes and what each of them leaves; `rlrun plan --suggest` looks for a combination."
    ),
    "engine-memory-too-small": (
        "rollout.sglang.mem_fraction_static of a GPU holds an engine's weights and its KV cache. Here the weights "
        "leave too little for a single sample of the longest prompt and response. Give the engine a larger share, "
        "or more GPUs."
    ),
    "host-memory-does-not-fit": (
        "Processes and the optimizer state that is collected on the host while a checkpoint is saved need more than "
        "placement.host_memory_gib. An estimate; null checks nothing."
    ),
}
