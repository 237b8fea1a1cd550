"""Everything SGLang needs from us to run without a GPU. Inert where CUDA is present or torchvision works."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def install_torchvision_ops() -> None:
    """Declares the two torchvision operators whose absence breaks `import torchvision` beside a CPU build of torch.

    PyPI's Linux torchvision is a CUDA build: without CUDA its shared library does not load, and importing it dies
    with "operator torchvision::nms does not exist". SGLang and transformers import it, and use nothing of it here.
    Call it before either is imported. Does nothing when the operators exist or torch has CUDA.
    """
    import torch

    spec = importlib.util.find_spec("torchvision")  # finds it without importing it
    if spec is None or spec.origin is None or torch.cuda.is_available() or hasattr(torch.ops.torchvision, "nms"):
        return
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(library)  # what importing torchvision would do first
            return
        except OSError:
            pass
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def register_hooks() -> None:
    """Registers torch code in place of the Triton kernels that have no other CPU path, through SGLang's hook registry.

    Call in the launching process and in every child, before SGLang loads its plugins.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.configs.model_config.ModelConfig.__init__", as_text_model, HookType.BEFORE)
    gate = "sglang.srt.models.qwen2_moe.fused_gate_sigmoid_mul_add"
    HookRegistry.register(gate, add_gated_experts, HookType.REPLACE)
    minimax = "sglang.srt.models.minimax_m2."
    HookRegistry.register(f"{minimax}rms_sumsq_serial", sums_of_squares, HookType.REPLACE)
    HookRegistry.register(f"{minimax}rms_apply_serial", apply_rms_norms, HookType.REPLACE)


def as_text_model(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A vision-language model (Qwen3.5) without its image processor, which needs a torchvision that works. rlrun sends
    token ids alone; SGLang's command line can turn this on, and not off."""
    return args, kwargs | {"enable_multimodal": False}


def add_gated_experts(hidden: Tensor, gate_weight: Tensor, shared: Tensor, out: Tensor) -> None:
    """out [n, h] += sigmoid(hidden @ gate_weight) * shared, in float32: Qwen3.5's gate of the shared experts. Replaces
    `fused_gate_sigmoid_mul_add`. A sum, not a matrix product, and a sigmoid in float64: their rounding would depend on
    the number of rows."""
    gate = (hidden.float() * gate_weight.float()).sum(dim=-1, keepdim=True).double().sigmoid().float()
    out.copy_(out.float() + gate * shared.float())


def sums_of_squares(x1: Tensor, x2: Tensor) -> Tensor:
    """Sums of squares over the rows of x1 [n, d1] and x2 [n, d2], in float32: [2n], those of x1 first.

    Replaces `rms_sumsq_serial` of SGLang's MiniMax-M2, whose norms of queries and keys run over all heads; their sums
    are added up over tensor-parallel ranks between this function and the next.
    """
    import torch

    return torch.cat([x.float().square().sum(dim=-1) for x in (x1, x2)])


def apply_rms_norms(
    x1: Tensor,
    x2: Tensor,
    w1: Tensor,
    w2: Tensor,
    sum_sq: Tensor,
    tp_world: int = 1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean of squares + eps) * w for both, in float32 and back in x's dtype. Each rank has d of the
    `tp_world` * d columns; `sum_sq` begins with the sums of all ranks. Replaces `rms_apply_serial`, same signature."""
    import torch

    n = x1.shape[0]
    out = []
    for x, w, sums in ((x1, w1, sum_sq[:n]), (x2, w2, sum_sq[n : 2 * n])):
        scale = torch.rsqrt(sums / x.shape[-1] / tp_world + eps).unsqueeze(-1)
        out.append((x.float() * scale * w.float()).to(x.dtype))
    return out[0], out[1]
