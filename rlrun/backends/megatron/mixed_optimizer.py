"""Checkpoints of an optimizer that is not distributed, also of a bfloat16 model with some float32 parameters."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

MAIN = "fp32_from_fp16_params"


def sharded(optimizer: MegatronOptimizer, model_state: dict[str, Any], is_loading: bool) -> dict[str, Any]:
    """Moments ("state", by number of the parameter) and, of a bfloat16 model, main weights (`MAIN`, by group)."""
    if not isinstance(optimizer, Float16OptimizerWithFloat16Params):
        adam = optimizer.sharded_state_dict(model_state, is_loading)
        return {"state": _moments(adam)}
    state = sharded_state_dict(optimizer, model_state, is_loading)
    # Of lists, `dist_checkpointing` leaves out empty ones.
    main = {number: dict(enumerate(group)) for number, group in enumerate(state[MAIN])}
    return {"state": _moments(state["optimizer"]), MAIN: main}


def _moments(adam: dict[str, Any]) -> dict[int, Any]:
    return {number: tensors for number, tensors in adam["state"].items() if number != "common_step"}


def load(optimizer: MegatronOptimizer, tensors: dict[str, Any]) -> None:
    """Takes over what `dist_checkpointing.load` made of `sharded`; every parameter is at step 0 then."""
    adam = {
        "state": {**tensors.get("state", {}), "common_step": torch.tensor(0.0)},
        "param_groups": optimizer.optimizer.state_dict()["param_groups"],
    }
    if not isinstance(optimizer, Float16OptimizerWithFloat16Params):
        optimizer.load_state_dict(adam)
        return
    saved = tensors.get(MAIN, {})
    groups = enumerate(optimizer.fp32_from_float16_groups)
    main = [[saved[number][i] for i in range(len(group))] for number, group in groups]
    optimizer.load_state_dict({"optimizer": adam, MAIN: main})


def sharded_state_dict(optimizer: Float16OptimizerWithFloat16Params, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Float16OptimizerWithFloat16Params.sharded_state_dict for parameter groups that have float32 parameters too.

    The stock method (megatron-core 0.16.1) numbers the bfloat16 parameters alone and takes these numbers for places in
    the groups, where the float32 ones count too: moments are saved under the names of other parameters, or an assertion
    about shapes fails. So here it is shown all parameters, in the order of the groups. What it then saves as float32
    copy of a float32 parameter is left out.
    """
    narrow, main = optimizer.float16_groups, optimizer.fp32_from_float16_groups
    model_of = {id(m): p for ps, ms in zip(narrow, main, strict=True) for p, m in zip(ps, ms, strict=True)}
    groups = [list(group["params"]) for group in optimizer.optimizer.param_groups]
    optimizer.float16_groups = [[model_of.get(id(p), p) for p in group] for group in groups]
    optimizer.fp32_from_float16_groups = groups
    try:
        state = Float16OptimizerWithFloat16Params.sharded_state_dict(optimizer, *args, **kwargs)
    finally:
        optimizer.float16_groups, optimizer.fp32_from_float16_groups = narrow, main
    copies = zip(state["fp32_from_fp16_params"], groups, strict=True)
    state["fp32_from_fp16_params"] = [
        [copy for copy, p in zip(saved, group, strict=True) if id(p) in model_of] for saved, group in copies
    ]
    return state
