"""What a rank really holds: bytes of weights, gradients and optimizer state of Megatron's model and optimizer."""

from __future__ import annotations

from typing import Any

import torch

from rlrun.backends.base import Rendezvous
from rlrun.plan.types import RunPlan


def held(rendezvous: Rendezvous, plan: RunPlan) -> dict[str, Any]:
    """After one optimizer step without gradients, by which torch's AdamW has made its moments."""
    from rlrun.backends.megatron import cpu, device
    from rlrun.backends.megatron.model import build_model, build_optimizer, wrap_ddp

    with cpu.shim():
        device.setup(plan)
        try:
            info = device.join(plan, rendezvous)
            model = wrap_ddp(build_model(plan.model.spec, plan.train, getattr(torch, plan.model.dtype)), plan.train)
            optimizer = build_optimizer(model, plan.train, plan.algo.optimizer)
            model.zero_grad_buffer()
            optimizer.zero_grad()
            optimizer.step()
            parameters = list(model.parameters())
            buffers = [*model.buffers, *model.expert_parallel_buffers]
            return {
                "info": info,
                "weights": sum(_bytes(p) for p in parameters),
                "gradients": sum(_bytes(p.main_grad) for p in parameters),
                "gradient buffers": sum(_bytes(b.grad_data) for b in buffers),
                "optimizer": sum(_state(inner, plan) for inner in optimizer.chained_optimizers)
                if hasattr(optimizer, "chained_optimizers")
                else _state(optimizer, plan),
                "tensors": len(parameters),
                "buckets": sum(len(b.buckets) for b in buffers),
            }
        finally:
            device.leave()


def _state(optimizer: Any, plan: RunPlan) -> int:
    """Moments, and main weights where they are a copy."""
    adam, total = optimizer.optimizer, 0
    for group in adam.param_groups:
        for parameter in group["params"]:
            total += sum(_bytes(adam.state[parameter][key]) for key in ("exp_avg", "exp_avg_sq"))
            if plan.model.dtype == "bfloat16":
                assert parameter.dtype == torch.float32
                total += _bytes(parameter)
    return total


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
