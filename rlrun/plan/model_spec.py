"""A model's shape in numbers, from a checkpoint's config.json or from `model.architecture`. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlrun.errors import Problem, RlrunError
from rlrun.families import FAMILIES, fields_of
from rlrun.families.base import DELTA_NET, LATENT
from rlrun.plan.parameters import count_parameters
from rlrun.plan.types import IndexerSpec, LinearAttentionSpec, MlaSpec, ModelSpec, MoeSpec

SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}
"""Values that every family takes for granted; any other would train a different model without notice."""

KINDS: dict[str, type | tuple[type, ...]] = {
    "tie_word_embeddings": bool,
    "attention_bias": bool,
    "use_qk_norm": bool,
    "rms_norm_eps": (int, float),
    "rope_theta": (int, float),
    "partial_rotary_factor": (int, float),
    "routed_scaling_factor": (int, float),
}
"""Types of the fields that are not whole numbers."""


def make_spec(family: str, architecture: Mapping[str, Any]) -> ModelSpec:
    """A spec from the values of `model.architecture` that the family has; others are not looked at."""
    a = {name: architecture[name] for name in fields_of(family)}
    spec = ModelSpec(
        family=family,
        hidden_size=a["hidden_size"],
        num_layers=a["num_hidden_layers"],
        num_heads=a["num_attention_heads"],
        num_kv_heads=a["num_key_value_heads"],
        head_dim=a.get("head_dim") or a["qk_nope_head_dim"] + a["qk_rope_head_dim"],
        ffn_hidden_size=a.get("intermediate_size") or a["moe_intermediate_size"],
        vocab_size=a["vocab_size"],
        rms_norm_eps=float(a["rms_norm_eps"]),
        rope_theta=float(a["rope_theta"]),
        max_position_embeddings=a["max_position_embeddings"],
        tied_embeddings=a["tie_word_embeddings"],
        num_parameters=0,
        qkv_bias=bool(a.get("attention_bias")),
        rotary_fraction=float(a.get("partial_rotary_factor", 1.0)),
        moe=_moe(a, FAMILIES[family].router),
        mla=MlaSpec(*(a[name] for name in LATENT)) if "kv_lora_rank" in a else None,
        linear_attention=_linear_attention(a),
        indexer=_indexer(a),
        **_traits(family, a),
    )
    return replace(spec, num_parameters=count_parameters(spec))


def _traits(family: str, a: Mapping[str, Any]) -> dict[str, Any]:
    traits = dict(FAMILIES[family].traits)
    if "use_qk_norm" in a:
        traits["qk_norm"] = "head" if a["use_qk_norm"] else "none"
    return traits


def _moe(a: Mapping[str, Any], router: str) -> MoeSpec | None:
    if "num_experts" not in a:
        return None
    gated = a.get("shared_expert_intermediate_size", 0)
    shared = gated or a.get("n_shared_experts", 0) * a["moe_intermediate_size"]
    first_dense = a.get("first_k_dense_replace", 0)
    width = a["moe_intermediate_size"]
    return MoeSpec(
        num_experts=a["num_experts"],
        experts_per_token=a["num_experts_per_tok"],
        ffn_hidden_size=width,
        shared_ffn_hidden_size=shared,
        shared_gate=gated > 0,
        first_dense=first_dense,
        score=router,
        scaling=float(a.get("routed_scaling_factor", 1.0)),
    )


def _linear_attention(a: Mapping[str, Any]) -> LinearAttentionSpec | None:
    if "full_attention_interval" not in a:
        return None
    interval, key_heads, value_heads, key_dim, value_dim, kernel = (a[name] for name in DELTA_NET)
    return LinearAttentionSpec(key_heads, value_heads, key_dim, value_dim, kernel, interval)


def _indexer(a: Mapping[str, Any]) -> IndexerSpec | None:
    """Layer i has an indexer of its own when max(i - offset + 1, 0) is a multiple of freq: with freq 4 and offset 3,
    layers 0, 1, 2, 6, 10, ..."""
    if "index_topk" not in a:
        return None
    freq, offset = a["index_topk_freq"], a["index_skip_topk_offset"]
    full = tuple(i for i in range(a["num_hidden_layers"]) if max(i - offset + 1, 0) % freq == 0)
    return IndexerSpec(a["index_n_heads"], a["index_head_dim"], a["index_topk"], full, freq, offset)


def read_architecture(directory: str, family: str = "qwen3") -> dict[str, Any]:
    """The values of config.json under the names of `model.architecture`, those that the family has.

    Read as plain JSON, because the classes of transformers fill in, rename and drop values depending on their version.
    Raises RlrunError: model-not-found without a readable config.json, model-unsupported when it lacks sizes or asks
    for what the family does not compute.
    """
    top = _read_config(Path(directory))
    nested = top.get("text_config")
    config = {"tie_word_embeddings": top.get("tie_word_embeddings")} | nested if isinstance(nested, dict) else dict(top)
    config["quantization_config"] = quantization(top) or None
    known = FAMILIES[family]
    supported = SUPPORTED | dict(known.supported)
    if is_block_fp8(quantization(top)):
        supported.pop("quantization_config")
    wrong = [f"{k}: {config.get(k)!r}" for k, allowed in supported.items() if config.get(k) not in allowed]
    if top.get("model_type") not in known.model_types:
        wrong.insert(0, f"model_type: {top.get('model_type')!r}")
    rope = _rope(config)
    if rope.get("rope_type", "default") != "default":
        wrong.append(f"rope_type: {rope['rope_type']!r}")
    values = {name: _value(family, name, config, rope) for name in fields_of(family)}
    wrong += [f"{known.names.get(k, k)}: {v!r}" for k, v in values.items() if not _is_kind(k, v)]
    if wrong:
        summary = f"{directory}/config.json describes a model that family {family} cannot compute: {', '.join(wrong)}"
        example = "use a dense Qwen3 checkpoint, e.g. Qwen/Qwen3-4B"
        hint = example if family == "qwen3" else f"use a checkpoint of family {family}, or another model=..."
        raise RlrunError(Problem("model-unsupported", summary, hint=hint))
    return values


def quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`quantization_config` of a config.json, or of its text model; empty without."""
    nested = config.get("text_config")
    inner = nested.get("quantization_config") if isinstance(nested, dict) else None
    found = config.get("quantization_config") or inner
    return found if isinstance(found, dict) else {"quant_method": found} if found else {}


def is_block_fp8(found: Mapping[str, Any]) -> bool:
    """FP8 with a scale for each block of a matrix, which is dequantised when it is read. transformers takes blocks of
    128 x 128 when nothing is said."""
    block = found.get("weight_block_size", [128, 128])
    whole = isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)
    return whole and found.get("quant_method") == "fp8"


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5 moved rope_theta and partial_rotary_factor into rope_parameters."""
    rope = config.get("rope_parameters")
    return rope if isinstance(rope, dict) else {}


def _value(family: str, name: str, config: Mapping[str, Any], rope: Mapping[str, Any]) -> Any:
    """One field of config.json, by the family's spelling; None when it is not there."""
    known = FAMILIES[family]
    value = config.get(known.names.get(name, name))
    if name in ("rope_theta", "partial_rotary_factor"):
        value = rope.get(name, value)
    if value is None and name == "partial_rotary_factor" and config.get("rotary_dim") and config.get("head_dim"):
        value = config["rotary_dim"] / config["head_dim"]
    if value is None and name == "first_k_dense_replace" and isinstance(config.get("mlp_layer_types"), list):
        kinds = config["mlp_layer_types"]
        dense = kinds.count("dense")
        value = dense if kinds == ["dense"] * dense + ["sparse"] * (len(kinds) - dense) else None
    if value is None and name == "tie_word_embeddings":
        value = False
    if value is None and name == "num_experts":
        value = config.get("num_local_experts")  # what transformers 5 writes for Qwen3-MoE
    if value is None and name == "full_attention_interval":
        value = _interval(config.get("layer_types"))  # what it leaves of Qwen3.5's
    return known.defaults.get(name) if value is None else value


def _interval(kinds: Any) -> int | None:
    """n, when each n-th layer of the list has full attention and no other."""
    if not isinstance(kinds, list) or "full_attention" not in kinds:
        return None
    n = kinds.index("full_attention") + 1
    regular = ["full_attention" if (i + 1) % n == 0 else "linear_attention" for i in range(len(kinds))]
    return n if kinds == regular else None


def _is_kind(name: str, value: Any) -> bool:
    kind = KINDS.get(name, int)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def spec_from_directory(directory: str, family: str = "qwen3") -> ModelSpec:
    """The spec of a checkpoint on disk. Raises RlrunError as `read_architecture` does."""
    return make_spec(family, read_architecture(directory, family))


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
