"""Checkpoints of a bfloat16 model with some float32 parameters, without the distributed optimizer."""

from __future__ import annotations

from typing import Any

from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params


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
