"""Weights that several families have in common: Megatron's names (local layer spec) and Hugging Face's.

`hf` and `mcore` are prefixes of one layer, with the final dot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlrun.families.splits import Columns, Qkv, Replicated, Rows, Sections, Weight
from rlrun.plan.parts.model import ModelSpec

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"


Part = Callable[[ModelSpec, int, str, str], Iterator[Weight]]
"""Weights of a part of a layer: (spec, its number, prefix in Hugging Face, prefix in Megatron)."""


def decoder(spec: ModelSpec, mixer: Part, mlp: Part, model: str = "model.") -> Iterator[Weight]:
    """A whole model: embedding, layers of a norm, a mixer, a norm and an MLP, final norm and output layer. `model` is
    the prefix of all but the output layer in Hugging Face."""
    yield embedding(spec, model)
    for n in range(spec.num_layers):
        hf, mcore = prefixes(n, model)
        before, after = layer_norms(spec, n, hf, mcore)
        yield before
        yield from mixer(spec, n, hf, mcore)
        yield after
        yield from mlp(spec, n, hf, mcore)
    yield from head(spec, model)


def prefixes(layer: int, model: str = "model.") -> tuple[str, str]:
    return f"{model}layers.{layer}.", f"decoder.layers.{layer}."


def embedding(spec: ModelSpec, model: str = "model.") -> Weight:
    shape = (spec.vocab_size, spec.hidden_size)
    return Weight(EMBEDDING, {f"{model}embed_tokens.weight": shape}, Columns(padded=True), "first")


def head(spec: ModelSpec, model: str = "model.") -> Iterator[Weight]:
    """The final norm, and the output layer unless it is the embedding."""
    initial = norm_initial(spec)
    name = "decoder.final_layernorm.weight"
    yield Weight(name, {f"{model}norm.weight": (spec.hidden_size,)}, Replicated(), "last", initial=initial)
    if not spec.tied_embeddings:
        shape = (spec.vocab_size, spec.hidden_size)
        yield Weight(OUTPUT, {"lm_head.weight": shape}, Columns(padded=True), "last")


def norm_initial(spec: ModelSpec) -> str:
    return "zero" if spec.zero_centered_norms else "one"


def norm(spec: ModelSpec, mcore: str, hf: str, layer: int, size: int | None = None) -> Weight:
    shape = (size or spec.hidden_size,)
    return Weight(f"{mcore}.weight", {f"{hf}.weight": shape}, Replicated(), layer, initial=norm_initial(spec))


def attention(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    """Grouped-query attention, with biases, output gate and per-head norms where the spec has them."""
    h, d = spec.hidden_size, spec.head_dim
    q, kv = spec.num_heads * d, spec.num_kv_heads * d
    rows = {"q": 2 * q if spec.output_gate else q, "k": kv, "v": kv}
    split = Qkv(spec.num_kv_heads, d, gated=spec.output_gate)
    attn, core = hf + "self_attn.", mcore + "self_attention."
    yield Weight(core + "linear_qkv.weight", {f"{attn}{p}_proj.weight": (r, h) for p, r in rows.items()}, split, n)
    if spec.qkv_bias:
        biases = {f"{attn}{p}_proj.bias": (r,) for p, r in rows.items()}
        yield Weight(core + "linear_qkv.bias", biases, split, n, initial="zero")
    yield Weight(core + "linear_proj.weight", {attn + "o_proj.weight": (h, q)}, Rows(), n)
    if spec.qk_norm == "head":
        yield norm(spec, core + "q_layernorm", attn + "q_norm", n, d)
        yield norm(spec, core + "k_layernorm", attn + "k_norm", n, d)


def latent_attention(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    """Multi-head latent attention; the down projections are whole on every rank."""
    m = spec.mla
    assert m is not None
    h, heads, attn, core = spec.hidden_size, spec.num_heads, hf + "self_attn.", mcore + "self_attention."
    for name, source, shape, split in (
        ("linear_q_down_proj", "q_a_proj", (m.q_rank, h), Replicated()),
        ("linear_q_up_proj", "q_b_proj", (heads * (m.nope_dim + m.rope_dim), m.q_rank), Columns()),
        ("linear_kv_down_proj", "kv_a_proj_with_mqa", (m.kv_rank + m.rope_dim, h), Replicated()),
        ("linear_kv_up_proj", "kv_b_proj", (heads * (m.nope_dim + m.v_dim), m.kv_rank), Columns()),
    ):
        yield Weight(f"{core}{name}.weight", {f"{attn}{source}.weight": shape}, split, n)
    yield Weight(core + "linear_proj.weight", {attn + "o_proj.weight": (h, heads * m.v_dim)}, Rows(), n)
    yield norm(spec, core + "q_layernorm", attn + "q_a_layernorm", n, m.q_rank)
    yield norm(spec, core + "kv_layernorm", attn + "kv_a_layernorm", n, m.kv_rank)


def swiglu(spec: ModelSpec, n: int, hf: str, mcore: str, size: int | None = None) -> Iterator[Weight]:
    """A dense MLP or the shared expert: gate, up and down."""
    h, f = spec.hidden_size, size or spec.ffn_hidden_size
    gate_up = {hf + "gate_proj.weight": (f, h), hf + "up_proj.weight": (f, h)}
    yield Weight(mcore + "linear_fc1.weight", gate_up, Sections(), n)
    yield Weight(mcore + "linear_fc2.weight", {hf + "down_proj.weight": (h, f)}, Rows(), n)


def router(spec: ModelSpec, n: int, hf: str, mcore: str, bias: str | None = None) -> Iterator[Weight]:
    """The router's matrix and, with `bias`, the correction that takes part in the selection: a float32 buffer."""
    moe = spec.moe
    assert moe is not None
    shape = (moe.num_experts, spec.hidden_size)
    yield Weight(mcore + "mlp.router.weight", {hf + "gate.weight": shape}, Replicated(), n)
    if bias is not None:
        name = mcore + "mlp.router.expert_bias"
        yield Weight(name, {hf + bias: (moe.num_experts,)}, Replicated(), n, float32=True, initial="zero")


def experts(
    spec: ModelSpec, n: int, hf: str, mcore: str, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> Iterator[Weight]:
    """Routed experts, one after the other; `parts` are the names of gate, up and down."""
    moe = spec.moe
    assert moe is not None
    h, f = spec.hidden_size, moe.ffn_hidden_size
    gate, up, down = parts
    for e in range(moe.num_experts):
        source, target = f"{hf}experts.{e}.", f"{mcore}mlp.experts.local_experts.{e}."
        gate_up = {f"{source}{gate}.weight": (f, h), f"{source}{up}.weight": (f, h)}
        yield Weight(target + "linear_fc1.weight", gate_up, Sections(), n, expert=e)
        yield Weight(target + "linear_fc2.weight", {f"{source}{down}.weight": (h, f)}, Rows(), n, expert=e)


def glm_mlp(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    """GLM: dense in the first layers; then a router with a bias, experts, and experts that every token passes."""
    moe = spec.moe
    assert moe is not None
    if n < moe.first_dense:
        yield from swiglu(spec, n, hf + "mlp.", mcore + "mlp.")
        return
    yield from router(spec, n, hf + "mlp.", mcore, bias="gate.e_score_correction_bias")
    yield from experts(spec, n, hf + "mlp.", mcore)
    shared = moe.shared_ffn_hidden_size
    yield from swiglu(spec, n, hf + "mlp.shared_experts.", mcore + "mlp.shared_experts.", shared)


def layer_norms(spec: ModelSpec, n: int, hf: str, mcore: str) -> tuple[Weight, Weight]:
    """The norms before attention and before the MLP."""
    before = norm(spec, mcore + "input_layernorm", hf + "input_layernorm", n)
    after = norm(spec, mcore + "pre_mlp_layernorm", hf + "post_attention_layernorm", n)
    return before, after
