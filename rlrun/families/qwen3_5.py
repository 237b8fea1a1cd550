"""Qwen3.5 and Qwen3.6, dense and MoE: the text model of a vision-language checkpoint.

Three gated delta nets, then one full attention, repeating. Attention has an output gate (the query projection is twice
as wide: query and gate for each head), per-head query/key norms and rotates a quarter of every head; the interleaved
multimodal rotation is plain rotation for text. All norms are zero-centred (1 + w), but for the gated norm behind a
delta net. The MoE variant has experts in every layer (softmax, renormalised) and one shared expert behind a sigmoid
gate.

Traps: on disk the names begin with `model.language_model.`, lm_head does not. Experts are stored packed, all of a layer
in one tensor, by some releases and one by one by others. A_log and dt_bias stay float32. Vision tower and
multi-token-prediction weights are not trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.families.base import DELTA_NET, DENSE, EXPERTS, HEADS, ROTARY, Family, common_config
from rlrun.families.parts import attention, decoder, experts, router, swiglu
from rlrun.families.splits import Columns, Replicated, Rows, Sections, Shape, Weight
from rlrun.plan.parameters import is_linear
from rlrun.plan.parts.model import ModelSpec

MODEL = "model.language_model."


def weights(spec: ModelSpec) -> Iterator[Weight]:
    return decoder(spec, mixer, mlp, MODEL)


def mixer(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    return (delta_net if is_linear(spec, n) else attention)(spec, n, hf, mcore)


def mlp(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    if spec.moe is None:
        return swiglu(spec, n, hf + "mlp.", mcore + "mlp.")
    return gated_experts(spec, n, hf + "mlp.", mcore)


def delta_net(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    g = spec.linear_attention
    assert g is not None
    h, k, v, heads = spec.hidden_size, g.num_key_heads * g.key_dim, g.num_value_heads * g.value_dim, g.num_value_heads
    net, core = hf + "linear_attn.", mcore + "self_attention."
    rows = {"qkv": 2 * k + v, "z": v, "b": heads, "a": heads}
    inputs = {f"{net}in_proj_{part}.weight": (size, h) for part, size in rows.items()}
    yield Weight(core + "in_proj.weight", inputs, Sections((k, k, v, v, heads, heads)), n)
    conv = {net + "conv1d.weight": (2 * k + v, 1, g.conv_kernel)}
    yield Weight(core + "conv1d.weight", conv, Sections((k, k, v)), n)
    yield Weight(core + "A_log", {net + "A_log": (heads,)}, Columns(), n, float32=True, initial="decay")
    yield Weight(core + "dt_bias", {net + "dt_bias": (heads,)}, Columns(), n, float32=True, initial="one")
    yield Weight(core + "out_norm.weight", {net + "norm.weight": (g.value_dim,)}, Replicated(), n, initial="one")
    yield Weight(core + "out_proj.weight", {net + "out_proj.weight": (h, v)}, Rows(), n)


def gated_experts(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    moe = spec.moe
    assert moe is not None
    yield from router(spec, n, hf, mcore)
    yield from experts(spec, n, hf, mcore)
    yield from swiglu(spec, n, hf + "shared_expert.", mcore + "mlp.shared_experts.", moe.shared_ffn_hidden_size)
    gate = {hf + "shared_expert_gate.weight": (1, spec.hidden_size)}
    yield Weight(mcore + "mlp.shared_experts.gate_weight", gate, Replicated(), n)


def _text_config(spec: ModelSpec, model_type: str) -> dict[str, Any]:
    g = spec.linear_attention
    assert g is not None
    config = common_config(spec, "", model_type)
    del config["architectures"]
    kinds = ["linear_attention" if is_linear(spec, n) else "full_attention" for n in range(spec.num_layers)]
    pairs = round(spec.head_dim * spec.rotary_fraction) // 2
    third = pairs // 3
    config["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [pairs - 2 * third, third, third]}
    config |= {
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": g.full_interval,
        "layer_types": kinds,
        "linear_conv_kernel_dim": g.conv_kernel,
        "linear_key_head_dim": g.key_dim,
        "linear_num_key_heads": g.num_key_heads,
        "linear_num_value_heads": g.num_value_heads,
        "linear_value_head_dim": g.value_dim,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 0,
    }
    if spec.moe is None:
        return config | {"intermediate_size": spec.ffn_hidden_size}
    return config | {
        "moe_intermediate_size": spec.moe.ffn_hidden_size,
        "num_experts": spec.moe.num_experts,
        "num_experts_per_tok": spec.moe.experts_per_token,
        "shared_expert_intermediate_size": spec.moe.shared_ffn_hidden_size,
    }


VISION = {
    "depth": 1,
    "hidden_size": 32,
    "in_channels": 3,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
"""Of a random checkpoint: engines load the whole vision-language model, and the smallest tower will do."""


def tower(spec: ModelSpec) -> dict[str, Shape]:
    """Tensors of that tower."""
    width, inner, merged = VISION["hidden_size"], VISION["intermediate_size"], VISION["hidden_size"] * 4
    patch = (VISION["in_channels"], VISION["temporal_patch_size"], VISION["patch_size"], VISION["patch_size"])
    matrices: dict[str, Shape] = {"patch_embed.proj": (width, *patch)}
    for n in range(VISION["depth"]):
        block = f"blocks.{n}."
        matrices |= {block + "attn.qkv": (3 * width, width), block + "attn.proj": (width, width)}
        matrices |= {block + "mlp.linear_fc1": (inner, width), block + "mlp.linear_fc2": (width, inner)}
        matrices |= {block + "norm1": (width,), block + "norm2": (width,)}
    matrices |= {"merger.linear_fc1": (merged, merged), "merger.linear_fc2": (spec.hidden_size, merged)}
    matrices |= {"merger.norm": (width,)}
    shapes: dict[str, Shape] = {"model.visual.pos_embed.weight": (VISION["num_position_embeddings"], width)}
    for name, shape in matrices.items():
        shapes |= {f"model.visual.{name}.weight": shape, f"model.visual.{name}.bias": shape[:1]}
    return shapes


def _config(spec: ModelSpec, architecture: str, model_type: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": _text_config(spec, model_type + "_text"),
        "tie_word_embeddings": spec.tied_embeddings,
        "vision_config": VISION | {"model_type": model_type, "out_hidden_size": spec.hidden_size},
    }


def dense_config(spec: ModelSpec) -> dict[str, Any]:
    return _config(spec, "Qwen3_5ForConditionalGeneration", "qwen3_5")


def moe_config(spec: ModelSpec) -> dict[str, Any]:
    return _config(spec, "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")


TRAITS = {"qk_norm": "head", "output_gate": True, "zero_centered_norms": True}
UNTRAINED = ("model.visual.", "visual.", "mtp.", "model.mtp.", "model.language_model.mtp.")

QWEN3_5 = Family(
    name="qwen3_5",
    label="Qwen3.5/3.6",
    fields=(*HEADS, *DENSE, *ROTARY, *DELTA_NET),
    model_types=("qwen3_5", "qwen3_5_text"),
    weights=weights,
    config_json=dense_config,
    supported={"attention_bias": (False, None)},
    traits=TRAITS,
    untrained=UNTRAINED,
    beside=tower,
)

QWEN3_5_MOE = Family(
    name="qwen3_5_moe",
    label="Qwen3.5/3.6-MoE",
    fields=(*HEADS, *EXPERTS, "shared_expert_intermediate_size", *ROTARY, *DELTA_NET),
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    weights=weights,
    config_json=moe_config,
    supported={"attention_bias": (False, None)},
    traits=TRAITS,
    untrained=UNTRAINED,
    beside=tower,
    packed_experts=True,
)
