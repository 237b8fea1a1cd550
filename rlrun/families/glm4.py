"""GLM-4-0414 and GLM-Z1-0414, dense.

Sandwich norms: besides the norms before attention and MLP, one on each one's output, before the residual is added. The
first half of every head is rotated, in interleaved pairs. Query, key and value may have biases (9B has, 32B has not).
No query/key norm. The MLP's gate and up projections are one tensor in the checkpoint, gate first.

Traps: the rotary pairs are interleaved (GLM-4.5's are halves). The class's default epsilon is 1.5625e-7, the released
configs say 1e-5. `post_attention_layernorm` is the norm before the MLP; `post_self_attn_layernorm` the one behind the
attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.families.base import DENSE, HEADS, ROTARY, Family, common_config
from rlrun.families.parts import attention, decoder, norm
from rlrun.families.splits import Rows, Sections, Weight
from rlrun.plan.parts.model import ModelSpec


def weights(spec: ModelSpec) -> Iterator[Weight]:
    return decoder(spec, mixer, mlp)


def mixer(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    yield from attention(spec, n, hf, mcore)
    yield norm(spec, mcore + "self_attention.post_layernorm", hf + "post_self_attn_layernorm", n)


def mlp(spec: ModelSpec, n: int, hf: str, mcore: str) -> Iterator[Weight]:
    h, f = spec.hidden_size, spec.ffn_hidden_size
    fused = {hf + "mlp.gate_up_proj.weight": (2 * f, h)}
    yield Weight(mcore + "mlp.linear_fc1.weight", fused, Sections((f, f)), n)
    yield Weight(mcore + "mlp.linear_fc2.weight", {hf + "mlp.down_proj.weight": (h, f)}, Rows(), n)
    yield norm(spec, mcore + "mlp.post_layernorm", hf + "post_mlp_layernorm", n)


def config_json(spec: ModelSpec) -> dict[str, Any]:
    own = {"attention_bias": spec.qkv_bias, "intermediate_size": spec.ffn_hidden_size}
    return common_config(spec, "Glm4ForCausalLM", "glm4") | own


GLM4 = Family(
    name="glm4",
    label="GLM-4",
    fields=(*HEADS, *DENSE, *ROTARY, "attention_bias"),
    model_types=("glm4",),
    weights=weights,
    config_json=config_json,
    traits={"qk_norm": "none", "sandwich_norms": True, "rotary_interleaved": True},
)
