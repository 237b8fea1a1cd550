"""Qwen3, dense: Hugging Face names and shapes, and the Megatron parameter each belongs to."""

from __future__ import annotations

from collections.abc import Iterator

from rlrun.backends.megatron.mapping import Columns, GateUp, Qkv, Replicated, Rows, Weight
from rlrun.plan.types import ModelSpec

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"


def weights(spec: ModelSpec) -> Iterator[Weight]:
    """Every tensor of `Qwen3ForCausalLM`, in the order of its state dict (layer numbers are global)."""
    h, f, d, v = spec.hidden_size, spec.ffn_hidden_size, spec.head_dim, spec.vocab_size
    q, kv = spec.num_heads * d, spec.num_kv_heads * d
    yield Weight(EMBEDDING, {"model.embed_tokens.weight": (v, h)}, Columns(padded=True), "first")
    for n in range(spec.num_layers):
        hf, mcore = f"model.layers.{n}.", f"decoder.layers.{n}."
        attention, mlp = hf + "self_attn.", hf + "mlp."
        qkv = {
            attention + "q_proj.weight": (q, h),
            attention + "k_proj.weight": (kv, h),
            attention + "v_proj.weight": (kv, h),
        }
        gate_up = {mlp + "gate_proj.weight": (f, h), mlp + "up_proj.weight": (f, h)}
        norm = Replicated()
        yield Weight(mcore + "self_attention.linear_qkv.weight", qkv, Qkv(spec.num_kv_heads, d), n)
        yield Weight(mcore + "self_attention.linear_proj.weight", {attention + "o_proj.weight": (h, q)}, Rows(), n)
        yield Weight(mcore + "self_attention.q_layernorm.weight", {attention + "q_norm.weight": (d,)}, norm, n)
        yield Weight(mcore + "self_attention.k_layernorm.weight", {attention + "k_norm.weight": (d,)}, norm, n)
        yield Weight(mcore + "mlp.linear_fc1.weight", gate_up, GateUp(), n)
        yield Weight(mcore + "mlp.linear_fc2.weight", {mlp + "down_proj.weight": (h, f)}, Rows(), n)
        yield Weight(mcore + "input_layernorm.weight", {hf + "input_layernorm.weight": (h,)}, norm, n)
        yield Weight(mcore + "pre_mlp_layernorm.weight", {hf + "post_attention_layernorm.weight": (h,)}, norm, n)
    yield Weight("decoder.final_layernorm.weight", {"model.norm.weight": (h,)}, Replicated(), "last")
    if not spec.tied_embeddings:
        yield Weight(OUTPUT, {"lm_head.weight": (v, h)}, Columns(padded=True), "last")
