"""Copies of weights that SGLang derives once, brought up to date after every weight update, on any device.

The routers of GLM-4.5 to 4.7 (`Glm4MoeGate`, `Glm4MoeLiteGate`) compute in float32 with a buffer `_weight_fp32`, filled
at the first forward pass and left alone afterwards: without this, rollouts would route by the first router for ever.
The other derived tensors of the served families are rebuilt by SGLang itself whenever weights are loaded (`w_kc` and
`w_vc` of latent attention, `gemma_weight` of zero-centred norms).

The hooks are SGLang's own (`sglang.srt.plugins`): they run after `ModelRunner`'s four ways to get new weights, in each
tensor-parallel rank, and for a draft model as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

COPIES = {"_weight_fp32": "weight"}
"""Attribute of a module that holds a copy in another dtype -> the parameter of the same module it is made from."""

UPDATES = (
    "update_weights_from_tensor",
    "update_weights_from_distributed",
    "update_weights_from_disk",
    "update_weights_from_ipc",
)
"""Methods of SGLang's ModelRunner after which weights are new."""


def register_hooks() -> None:
    """Registers the hooks; SGLang applies them in each of its processes. Call in the launching process and in every
    child, before SGLang loads its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for method in UPDATES:
        target = f"sglang.srt.model_executor.model_runner.ModelRunner.{method}"
        HookRegistry.register(target, _after_update, HookType.AFTER)


def _after_update(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """None keeps the result. Runs after a failed update too: the copies then follow whatever was loaded."""
    refresh_copies(runner.model)


def refresh_copies(model: nn.Module) -> int:
    """Overwrites every copy by the weight it was made from; returns how many there are.

    In place: CUDA graphs have captured the addresses. A copy that is not made yet (None) is left to its module, and one
    that shares the weight's memory, as in a float32 model, is fresh as it is.
    """
    import torch

    copies = 0
    with torch.no_grad():
        for module in model.modules():
            for name, source in COPIES.items():
                copy = getattr(module, name, None)
                if copy is not None:
                    copy.copy_(getattr(module, source))
                    copies += 1
    return copies
