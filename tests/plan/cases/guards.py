"""Cases of the CPU twin, of sampling and family guards, and of checkpoints on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from case import BIG, QUICK, Case
from weights_on_disk import qwen3_shapes, write_safetensors

from rlrun.plan.build import load_plan

DSA = [BIG, "placement=cpu_1", "model=glm5"]
GDN = [QUICK, "model=tiny_qwen3_5", "placement=gpu_1"]
ON_DISK = [BIG, "model.path=./model"]
UP_PROJ = "model.layers.7.mlp.up_proj.weight"


def weights(cut: int = 0, dtype: str = "BF16", **more: tuple[int, ...] | None) -> Callable[[Path], None]:
    """Qwen3-4B in one file that lacks `cut` bytes, with additional tensors, or without those that are None."""

    def make(folder: Path) -> None:
        plan = load_plan([BIG])
        architecture = {k: v for k, v in plan.resolved_config["model"]["architecture"].items() if v is not None}
        (folder / "model").mkdir(exist_ok=True)
        (folder / "model" / "config.json").write_text(json.dumps({"model_type": "qwen3", **architecture}))
        (folder / "model" / "tokenizer.json").write_text("{}")
        shapes = {name: shape for name, shape in (qwen3_shapes(plan.model.spec) | more).items() if shape is not None}
        write_safetensors(folder / "model" / "model.safetensors", shapes, dtype, cut)

    return make


CASES = [
    Case("twin-of-cpu", [QUICK, "+twin=cpu"]),
    Case("unknown-option", [BIG, "+twin=laptop"], ["+twin=cpu"]),
    Case("sampling-truncated", [BIG, "rollout.top_p=0.95"], ["rollout.top_p=1"]),
    Case("sampling-truncated", [BIG, "rollout.top_k=50"], ["rollout.top_k=-1"]),
    Case("sampling-truncated", [BIG, "rollout.min_p=0.05"], ["rollout.min_p=0"]),
    Case("not-allowed", [QUICK, "eval.temperature=1", "eval.top_k=0"], ["eval.top_k=-1"]),
    Case("inactive-key", [QUICK, "eval.top_p=0.9"], ["eval.top_p=1"]),
    Case("inactive-key", [QUICK, "eval.top_k=20"], ["eval.top_k=-1"]),
    Case("inactive-key", [BIG, "eval.top_p=0.9"], ["eval.top_p=1"]),
    Case("sparse-attention-length", DSA, ["rollout.max_response_tokens=1536"]),
    Case(
        "sparse-attention-length",
        [*DSA, "rollout.max_prompt_tokens=4096"],
        ["rollout.max_prompt_tokens=1024", "rollout.max_response_tokens=1024"],
    ),
    Case("gdn-backend", [QUICK, "model=tiny_qwen3_5", "model.gdn_backend=fla"], ["model.gdn_backend=auto"]),
    Case("gdn-backend", [*GDN, "model.gdn_backend=flashqla"], ["model.gdn_backend=auto"]),
    Case("gdn-backend", [*GDN, "model.gdn_backend=fla", "model.dtype=float32"], ["model.gdn_backend=auto"]),
    Case("inactive-key", [BIG, "model.gdn_backend=torch"], ["model.gdn_backend=auto"]),
    Case("checkpoint-incomplete", ON_DISK, prepare=weights(cut=1), repair=weights()),
    Case("weights-unexpected", ON_DISK, prepare=weights(extra=(3, 5)), repair=weights()),
    Case("weights-missing", ON_DISK, prepare=weights(**{UP_PROJ: None}), repair=weights()),
    Case("weights-quantised", ON_DISK, prepare=weights(dtype="F8_E4M3"), repair=weights()),
    Case("weights-shape", ON_DISK, prepare=weights(**{"model.norm.weight": (2561,)}), repair=weights()),
]
