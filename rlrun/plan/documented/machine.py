"""Codes: this machine, looked at when a run starts."""

from __future__ import annotations

CODES: dict[str, str] = {
    "engines-not-installed": (
        "This environment can plan but not run: Ray, torch, Megatron-core, SGLang or another package is "
        "missing. `make setup` installs them for a CPU, `pip install rlrun[gpu]` for CUDA."
    ),
    "family-not-runnable": (
        "All families can be planned, with their exact parameter counts and memory; the trainer of this version has "
        "the weight mapping of Qwen3 dense models alone."
    ),
    "async-not-runnable": (
        "Asynchronous modes can be planned, with their times, bubbles and staleness. The loop of this version waits "
        "for each weight sync before it generates: async_mode=sync runs."
    ),
    "weights-not-here": (
        "The folder of model.path has a config.json and neither weights nor tokenizer, which is enough for a plan and "
        "not for a run."
    ),
    "stale-router": (
        "SGLang's model class of glm4_moe computes its router with an fp32 copy of the weight, made at the first "
        "forward pass and left alone by weight updates (releases 0.5.12.post1 to 0.5.18; gone in 0.5.23): rollouts "
        "would route by the first router for ever. It takes a refresh in place after every weight sync, "
        "gate._weight_fp32.copy_(gate.weight), which this version's engines do not do yet."
    ),
    "too-few-gpus": (
        "The plan is consistent, and this machine (without RAY_ADDRESS naming a cluster) has fewer GPUs than it needs."
    ),
}
