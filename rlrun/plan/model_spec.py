"""A model's shape in numbers, from a checkpoint's config.json or from `model.architecture`. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.errors import Problem, RlrunError
from rlrun.plan.types import ModelSpec

SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
"""Keys of config.json that must be there."""

DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
"""What transformers' Qwen3Config assumes for keys that config.json leaves out."""

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("qwen3",),
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}
"""Values that the Megatron mapping of the family computes; any other would train a different model without notice."""


def count_parameters(architecture: Mapping[str, Any]) -> int:
    """Exact number of parameters of a dense Qwen3; a tied output layer is counted once.

    Per layer: q, k, v, o projections, two per-head norms, two layer norms, the three SwiGLU matrices. Then the
    embedding, the final norm and, when untied, the output layer.
    """
    a = architecture
    h, head_dim = a["hidden_size"], a["head_dim"]
    q, kv = a["num_attention_heads"] * head_dim, a["num_key_value_heads"] * head_dim
    attention = h * (q + 2 * kv) + q * h + 2 * head_dim
    layer = attention + 2 * h + 3 * h * a["intermediate_size"]
    embeddings = a["vocab_size"] * h * (1 if a["tie_word_embeddings"] else 2)
    return a["num_hidden_layers"] * layer + embeddings + h


def make_spec(family: str, architecture: Mapping[str, Any]) -> ModelSpec:
    """A spec from all twelve values of `model.architecture`."""
    a = architecture
    return ModelSpec(
        family=family,
        hidden_size=a["hidden_size"],
        num_layers=a["num_hidden_layers"],
        num_heads=a["num_attention_heads"],
        num_kv_heads=a["num_key_value_heads"],
        head_dim=a["head_dim"],
        ffn_hidden_size=a["intermediate_size"],
        vocab_size=a["vocab_size"],
        rms_norm_eps=float(a["rms_norm_eps"]),
        rope_theta=float(a["rope_theta"]),
        max_position_embeddings=a["max_position_embeddings"],
        tied_embeddings=a["tie_word_embeddings"],
        num_parameters=count_parameters(a),
    )


def read_architecture(directory: str) -> dict[str, Any]:
    """The values of config.json under the names of `model.architecture`.

    Raises RlrunError: model-not-found without a readable config.json, model-unsupported when it lacks sizes or asks
    for what the family's mapping does not compute.
    """
    config = _read_config(Path(directory))
    wrong = [f"{k}: {config.get(k)!r}" for k, allowed in SUPPORTED.items() if config.get(k) not in allowed]
    rope = config.get("rope_parameters") or {}  # transformers 5 moved rope_theta there
    if rope.get("rope_type", "default") != "default":
        wrong.append(f"rope_type: {rope['rope_type']!r}")
    absent = [k for k in SIZES if not isinstance(config.get(k), int)]
    if wrong or absent:
        said = [*wrong, *(f"{k}: {config.get(k)!r}" for k in absent)]
        summary = f"{directory}/config.json describes a model that family qwen3 cannot compute: {', '.join(said)}"
        raise RlrunError(Problem("model-unsupported", summary, hint="use a dense Qwen3 checkpoint, e.g. Qwen/Qwen3-4B"))
    values = {k: config[k] for k in SIZES}
    values |= {k: config.get(k, default) for k, default in DEFAULTS.items()}
    values["rope_theta"] = rope.get("rope_theta", values["rope_theta"])
    return values


def spec_from_directory(directory: str) -> ModelSpec:
    """The spec of a checkpoint on disk. Raises RlrunError as `read_architecture` does."""
    return make_spec("qwen3", read_architecture(directory))


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        reason = None if isinstance(config, dict) else "is not a JSON object"
    except FileNotFoundError:
        reason = "does not exist" if directory.is_dir() else f"does not exist, nor does the folder {directory}"
    except (OSError, ValueError) as e:
        reason = f"cannot be read: {e}"
    if reason is not None:
        hint = "set model.path to the folder of a Hugging Face checkpoint, or to a Hub id such as Qwen/Qwen3-4B"
        raise RlrunError(Problem("model-not-found", f"{path} {reason}", hint=hint))
    return config
