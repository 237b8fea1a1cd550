"""Codes: this machine, looked at when a run starts."""

from __future__ import annotations

CODES: dict[str, str] = {
    "engines-not-installed": (
        "This environment can plan but not run: Ray, torch, Megatron-core, SGLang or another package is "
        "missing. `make setup` installs them for a CPU, `pip install rlrun[gpu]` for CUDA."
    ),
    "async-not-runnable": (
        "Asynchronous modes can be planned, with their times, bubbles and staleness. The loop of this version waits "
        "for each weight sync before it generates: async_mode=sync runs."
    ),
    "weights-not-here": (
        "The folder of model.path has a config.json and neither weights nor tokenizer, which is enough for a plan and "
        "not for a run."
    ),
    "too-few-gpus": (
        "The plan is consistent, and this machine (without RAY_ADDRESS naming a cluster) has fewer GPUs than it needs."
    ),
}
