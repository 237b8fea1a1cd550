"""Arguments of the engines beside the device, the model's family and each other. What is wrong with an argument alone
is found when the configuration is read (`rlrun.config.arguments.check`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.config.arguments import megatron, sglang
from rlrun.config.arguments.check import matches
from rlrun.config.origin import show
from rlrun.errors import Problem
from rlrun.families import fields_of
from rlrun.plan.context import Context

SGLANG = "rollout.sglang"
MEGATRON = "trainer.megatron"
SPECULATIVE = f"{SGLANG}.speculative_algorithm"


def device(c: Context) -> Iterator[Problem]:
    if c.config.placement.device == "cpu":
        yield from _idle(c, SGLANG, sglang.CUDA_ONLY, "needs a GPU", "placement.device")
        yield from _idle(c, MEGATRON, megatron.CUDA_ONLY, "needs a GPU", "placement.device")


def cuda_graphs(c: Context) -> Iterator[Problem]:
    if c.config.placement.device == "cuda" and not c.config.rollout.sglang.cuda_graph:
        why = "shapes CUDA graphs, which are switched off"
        yield from _idle(c, SGLANG, ("*cuda_graph*", "*cudagraph*"), why, f"{SGLANG}.cuda_graph")


def layers(c: Context) -> Iterator[Problem]:
    """Arguments for layers that the model does not have."""
    family = c.config.model.family
    for section, patterns, field, what in (
        (SGLANG, sglang.EXPERTS, "num_experts", "experts"),
        (MEGATRON, megatron.EXPERTS, "num_experts", "experts"),
        (SGLANG, sglang.LINEAR_ATTENTION, "linear_num_key_heads", "linear attention"),
        (SGLANG, sglang.INDEXER, "index_topk", "sparse attention"),
    ):
        if field not in fields_of(family):
            yield from _idle(c, section, patterns, f"is for {what}, which {family} does not have", "model.family")


def pipeline(c: Context) -> Iterator[Problem]:
    p = c.config.placement.trainer
    if p.pp == 1:
        why = "is for the stages of a pipeline, and there is one"
        yield from _idle(c, MEGATRON, megatron.PIPELINE, why, "placement.trainer.pp")


def experts(c: Context) -> Iterator[Problem]:
    """Router and capacity of a model with experts."""
    if not c.config.trainer.megatron.engine_arguments or "num_experts" not in fields_of(c.config.model.family):
        return
    kind, capacity = f"{MEGATRON}.moe_router_load_balancing_type", f"{MEGATRON}.moe_expert_capacity_factor"
    written = c.value(kind)
    kinds = written if isinstance(written, list) else [written]
    if not set(kinds) <= set(BALANCING):
        summary = f"{kind} is {show(written)}, it has to be one of {', '.join(BALANCING)}, or a list of them"
        yield c.problem("not-allowed", summary, kind, hint=f"set {kind} to aux_loss")
        return
    weights = c.value(f"{MEGATRON}.moe_aux_loss_coeff")
    if (len(weights) if isinstance(weights, list) else 0) != (len(written) if isinstance(written, list) else 0):
        summary = "a list of balancing losses needs a list of as many coefficients"
        hint = f"set {MEGATRON}.moe_aux_loss_coeff to [{', '.join(['0.001'] * len(kinds))}]"
        if not isinstance(written, list):
            hint = f"set {MEGATRON}.moe_aux_loss_coeff to one number"
        yield c.problem("argument-conflict", summary, kind, f"{MEGATRON}.moe_aux_loss_coeff", hint=hint)
    if not any(name.endswith("aux_loss") for name in kinds):
        why = f"weighs a loss that balances experts, and {show(written)} has none"
        yield from _idle(c, MEGATRON, ("moe_aux_loss_coeff",), why, kind)
    if c.value(capacity) is None:
        names = ("moe_pad_expert_input_to_capacity", "moe_token_drop_policy")
        yield from _idle(c, MEGATRON, names, "needs a capacity of the experts", capacity)
    elif "sinkhorn" in kinds:
        summary = "experts have a capacity only beside an auxiliary loss or none"
        yield c.problem("argument-conflict", summary, capacity, kind, hint=f"set {capacity} to null")
    if not {"n_shared_experts", "shared_expert_intermediate_size"} & set(fields_of(c.config.model.family)):
        why = "hides the work of shared experts, which the model does not have"
        yield from _idle(c, MEGATRON, ("moe_shared_expert_overlap",), why, "model.family")


BALANCING = ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none")


def recomputation(c: Context) -> Iterator[Problem]:
    key, t = f"{MEGATRON}.distribute_saved_activations", c.config.trainer
    if not _written(c, key):
        return
    if t.recompute != "full" or c.config.placement.trainer.tp == 1:
        summary = f"{key} splits recomputed layers' inputs over tensor-parallel ranks"
        keys = (key, "trainer.recompute", "placement.trainer.tp")
        yield c.problem("inactive-key", summary, *keys, hint=f"set {key} to false")
    elif t.sequence_parallel:
        summary = f"{key} and trainer.sequence_parallel split the same activations"
        yield c.problem("argument-conflict", summary, key, "trainer.sequence_parallel", hint=f"set {key} to false")


def buckets(c: Context) -> Iterator[Problem]:
    if not c.config.trainer.distributed_optimizer:
        names = ("pad_buckets_for_high_nccl_busbw", "reduce_scatter_with_fp32_accumulation")
        why = "shapes the buckets of a sharded optimizer"
        yield from _idle(c, MEGATRON, names, why, "trainer.distributed_optimizer")


def seeded(c: Context) -> Iterator[Problem]:
    """What a seeded engine needs to be as it is."""
    if not c.config.rollout.seeded:
        return
    needed = [("enable_deterministic_inference", True), ("sampling_backend", "pytorch")]
    if c.config.placement.device == "cpu":
        needed.append(("chunked_prefill_size", -1))  # only the GPU backends keep chunks aligned
    for name, value in needed:
        key = f"{SGLANG}.{name}"
        if name in c.config.rollout.sglang.engine_arguments and c.value(key) != value:
            summary = f"seeded sampling needs {name} {show(value)}, not {show(c.value(key))}"
            hint = f"set {key} to {show(value)}, or rollout.seeded to false"
            yield c.problem("argument-conflict", summary, key, "rollout.seeded", hint=hint)


def head_precision(c: Context) -> Iterator[Problem]:
    fp32, target = f"{SGLANG}.enable_fp32_lm_head", f"{SGLANG}.rl_on_policy_target"
    if _written(c, fp32) and _written(c, target) is not None:
        summary = (
            "enable_fp32_lm_head computes logits in float32, and rl_on_policy_target rounds them and the "
            "log-probabilities to bfloat16 again"
        )
        yield c.problem("argument-conflict", summary, fp32, target, hint=f"set {target} to null, or {fp32} to false")


def speculation(c: Context) -> Iterator[Problem]:
    """Speculative decoding: all of its arguments or none."""
    algorithm = _written(c, SPECULATIVE)
    if algorithm is None:
        names = ("speculative_*", "enable_multi_layer_eagle", "spec_trace_dir")
        yield from _idle(c, SGLANG, names, "shapes speculative decoding, which is off", SPECULATIVE)
    elif algorithm not in (*EAGLE, *DRAFT_MODEL, "NGRAM"):
        known = ", ".join(dict.fromkeys((*EAGLE, *DRAFT_MODEL, "NGRAM")))
        summary = f"{SPECULATIVE} is {show(algorithm)}, it has to be one of {known}"
        yield c.problem("not-allowed", summary, SPECULATIVE, hint=f"set {SPECULATIVE} to one of them, or to null")
    elif missing := _missing_draft(c, algorithm):
        names_missing = ", ".join(key.rpartition(".")[2] for key in missing)
        hint = "set " + ", and ".join(f"{key} to {DRAFT[key.rpartition('.')[2]]}" for key in missing)
        summary = f"{algorithm} needs {names_missing} too"
        yield c.problem("argument-incomplete", summary, SPECULATIVE, *missing, hint=hint)
    else:
        yield from _draft_shape(c, algorithm)


def _missing_draft(c: Context, algorithm: str) -> list[str]:
    """Keys without which the algorithm would be completed by guesses, or stop at start."""
    names = ["speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"]
    names = names if algorithm in EAGLE else ["speculative_num_draft_tokens"] if algorithm == "NGRAM" else []
    if algorithm in DRAFT_MODEL or (algorithm in EAGLE and c.config.model.family not in PREDICTS_MORE):
        names.append("speculative_draft_model_path")
    return [key for name in names if c.value(key := f"{SGLANG}.{name}") is None]


def _draft_shape(c: Context, algorithm: str) -> Iterator[Problem]:
    """Numbers that SGLang would replace by others with a line in its log."""
    steps, tokens = f"{SGLANG}.speculative_num_steps", f"{SGLANG}.speculative_num_draft_tokens"
    branches = f"{SGLANG}.speculative_eagle_topk"
    if algorithm in EAGLE and c.value(branches) == 1 and c.value(tokens) != c.value(steps) + 1:
        summary = f"{c.value(steps)} draft steps without branches make {c.value(steps) + 1} draft tokens"
        hint = f"set {tokens} to {c.value(steps) + 1}"
        yield c.problem("argument-conflict", summary, tokens, steps, branches, hint=hint)
    if algorithm == "DFLASH" and c.value(steps) not in (None, 1):
        summary = "DFLASH drafts a block in one step"
        yield c.problem("argument-conflict", summary, steps, SPECULATIVE, hint=f"set {steps} to 1")


EAGLE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
DRAFT_MODEL = ("EAGLE3", "STANDALONE", "DFLASH")
"""Algorithms whose draft model is always one of its own."""
PREDICTS_MORE = ("qwen3_5", "qwen3_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa")
"""Families whose checkpoints hold a layer that predicts further tokens, which drafts for EAGLE and NEXTN."""
DRAFT = {
    "speculative_num_steps": "3",
    "speculative_eagle_topk": "1",
    "speculative_num_draft_tokens": "4",
    "speculative_draft_model_path": "the folder of a draft model",
}
"""Values to begin with."""


def _written(c: Context, key: str) -> Any:
    """The value of an argument; None when nobody wrote one, without reading the recorded table for its default."""
    section, _, name = key.rpartition(".")
    return c.value(section).engine_arguments.get(name)


def _idle(c: Context, section: str, patterns: tuple[str, ...], why: str, because: str) -> Iterator[Problem]:
    """Arguments that were set away from their usual value and do nothing."""
    for name in c.value(section).engine_arguments:
        key = f"{section}.{name}"
        if key != because and matches(name, patterns) and c.changed(key):
            hint = f"set {key} to {show(c.default(key))}"
            yield c.problem("inactive-key", f"{key} {why}", key, because, hint=hint)


RULES = (
    device,
    cuda_graphs,
    layers,
    pipeline,
    experts,
    recomputation,
    buckets,
    seeded,
    head_precision,
    speculation,
)
