"""How weights reach the engines, and how far generation may run ahead."""

from __future__ import annotations

from typing import Literal

from rlrun.config.sections.base import NonNegative, Positive, Section


class WeightSyncConfig(Section):
    transport: Literal["tensor", "distributed", "disk", "delta"] = "tensor"
    """tensor: handed to the engine on the same slot (by value on cpu, CUDA IPC on cuda), colocated only.
    distributed: a gloo or NCCL group of trainer rank 0 and every engine. disk: a Hugging Face checkpoint in a folder
    that trainer rank 0 and every engine see; any placement. delta: the changes since the version before, by a file in
    such a folder; trainer rank 0 keeps a copy of the weights in host memory, each engine one in a temporary file."""
    bucket_mb: Positive = 512
    """Size of one transfer, or of one piece of a file of changes, in MiB; disk has neither."""
    dir: str | None = None
    """Folder for disk and delta, on a file system that all nodes share; each run makes its own in it, and takes it away
    at its end. null is `weight_sync` in the folder of the run."""
    verify: Literal["version", "canary"] = "version"
    """After each sync: read the version back from every engine; canary also compares log-probs on a fixed text."""


class AsyncModeConfig(Section):
    """A version of the policy is what one step of the loop makes; staleness counts the steps between the weights that
    drew a sample and those that train on it."""

    name: Literal["sync", "one_step", "fully_async"] = "sync"
    """sync: generate, train, publish, in turns. one_step: the next rollout is drawn while this one trains.
    fully_async: generation never waits for the trainer, within max_staleness."""
    max_staleness: NonNegative = 0
    """Largest trainer version minus sample version that is trained on: 0 for sync, 1 for one_step."""
    max_in_flight_groups: Positive | None = None
    """Prompt groups being generated at once, over all engines; null is algo.prompts_per_rollout. fully_async only,
    where it takes the place of rollout.max_concurrent_groups."""
    pause_mode: Literal["abort", "retract", "in_place"] | None = None
    """What becomes of running requests while weights arrive. abort: they end where they are. retract: they keep their
    tokens and lose their KV cache, which new weights compute again. in_place: they keep both. fully_async only."""
    partial_rollout: bool = False
    """Go on later from the tokens of an aborted sample instead of drawing it anew; with pause_mode abort."""
    weight_sync_interval: Positive = 1
    """Steps from one weight sync to the next; more than 1 in fully_async only, and at most max_staleness."""
