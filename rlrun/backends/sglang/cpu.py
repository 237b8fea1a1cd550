"""Everything SGLang needs from us to run without a GPU. Inert where CUDA is present or torchvision works."""

from __future__ import annotations

import importlib.util
from pathlib import Path


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
