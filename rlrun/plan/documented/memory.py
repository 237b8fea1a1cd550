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
        "Processes, what is offloaded to the host, and the state that is collected there while a checkpoint is saved "
        "need more than placement.host_memory_gib of a node. An estimate, by rlrun/plan/host_memory.py; null checks "
        "nothing."
    ),
    "optimizer-not-sharded": (
        "Moments in bfloat16 and an optimizer on the host are features of Megatron's distributed optimizer, and "
        "trainer.distributed_optimizer is false."
    ),
    "optimizer-offload-not-runnable": (
        "trainer.optimizer_offload can be planned, and is not carried out by this version: a run would hold the "
        "optimizer on the GPU while it trains. trainer.offload is, and empties the GPU while engines generate."
    ),
    "optimizer-dtype-not-runnable": (
        "Moments in bfloat16 need the optimizer of TransformerEngine, which this version does not use."
    ),
}
