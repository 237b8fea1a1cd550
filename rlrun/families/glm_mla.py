"""GLM-4.7-Flash (`glm4_moe_lite`) and GLM-5, 5.1, 5.2 (`glm_moe_dsa`): multi-head latent attention.

Queries, and keys with values, pass through a narrow latent with a norm; a slice of every head is rotated. MLP and
router are those of GLM-4.5. GLM-5 adds an indexer that selects `index_topk` keys for every query: up to that many
tokens it selects all of them, so dense attention is exact, and longer sequences are refused by the plan.

Traps: Megatron's default for latent attention is `rope_type="yarn"` with factor 40, which moves logits without a word;
here it is always plain "rope". Megatron rotates interleaved pairs itself, so the weights load as they are. Hugging Face
hard-codes 1e-6 for the norms of the two latents, SGLang and Megatron use the config's epsilon. Megatron's own layers
without TransformerEngine lose a part of the gradient of the shared keys under tensor parallelism. `head_dim` in GLM-5's
config.json means nothing. The indexer's weights and the multi-token-prediction layer are not trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.families.base import DENSE, GLM_EXPERTS, GLM_NAMES, GLM_ROUTER, INDEXER, LATENT, Family, common_config
from rlrun.families.glm4_moe import MTP_LAYER, glm_moe_config
from rlrun.families.parts import decoder, glm_mlp, latent_attention
from rlrun.families.splits import Shape, Weight
from rlrun.plan.parts.model import ModelSpec


def weights(spec: ModelSpec) -> Iterator[Weight]:
    return decoder(spec, latent_attention, glm_mlp)


def _latent_config(spec: ModelSpec) -> dict[str, Any]:
    mla, moe = spec.mla, spec.moe
    assert mla is not None
    assert moe is not None
    kinds = ["dense"] * moe.first_dense + ["sparse"] * (spec.num_layers - moe.first_dense)
    return glm_moe_config(spec) | {
        "kv_lora_rank": mla.kv_rank,
        "mlp_layer_types": kinds,
        "q_lora_rank": mla.q_rank,
        "qk_head_dim": mla.nope_dim + mla.rope_dim,
        "qk_nope_head_dim": mla.nope_dim,
        "qk_rope_head_dim": mla.rope_dim,
        "rope_interleave": True,
        "v_head_dim": mla.v_dim,
    }


def indexers(spec: ModelSpec) -> dict[str, Shape]:
    """Tensors of the layers' indexers."""
    mla, indexer = spec.mla, spec.indexer
    assert mla is not None
    assert indexer is not None
    width, heads = indexer.head_dim, indexer.num_heads
    shapes: dict[str, Shape] = {}
    for n in indexer.full_layers:
        prefix = f"model.layers.{n}.self_attn.indexer."
        shapes |= {
            prefix + "wq_b.weight": (heads * width, mla.q_rank),
            prefix + "wk.weight": (width, spec.hidden_size),
            prefix + "k_norm.weight": (width,),
            prefix + "k_norm.bias": (width,),
            prefix + "weights_proj.weight": (heads, spec.hidden_size),
        }
    return shapes


def flash_config(spec: ModelSpec) -> dict[str, Any]:
    return common_config(spec, "Glm4MoeLiteForCausalLM", "glm4_moe_lite") | _latent_config(spec)


def sparse_config(spec: ModelSpec) -> dict[str, Any]:
    indexer = spec.indexer
    assert indexer is not None
    kinds = ["full" if n in indexer.full_layers else "shared" for n in range(spec.num_layers)]
    own = {
        "index_head_dim": indexer.head_dim,
        "index_n_heads": indexer.num_heads,
        "index_topk": indexer.top_k,
        "index_topk_freq": indexer.freq,
        "index_skip_topk_offset": indexer.offset,
        "indexer_rope_interleave": True,
        "indexer_types": kinds,
    }
    return common_config(spec, "GlmMoeDsaForCausalLM", "glm_moe_dsa") | _latent_config(spec) | own


GLM4_MOE_LITE = Family(
    name="glm4_moe_lite",
    label="GLM-4.7-Flash",
    fields=(*DENSE, *GLM_EXPERTS, *LATENT),
    model_types=("glm4_moe_lite",),
    weights=weights,
    config_json=flash_config,
    names=GLM_NAMES,
    defaults={"routed_scaling_factor": 1.8},
    supported=GLM_ROUTER | {"attention_bias": (False, None)},
    traits={"qk_norm": "none"},
    router="sigmoid",
    untrained=(MTP_LAYER,),
)

GLM_MOE_DSA = Family(
    name="glm_moe_dsa",
    label="GLM-5/5.1/5.2",
    fields=(*DENSE, *GLM_EXPERTS, *LATENT, *INDEXER),
    model_types=("glm_moe_dsa",),
    weights=weights,
    config_json=sparse_config,
    names=GLM_NAMES,
    defaults={"index_topk_freq": 1, "index_skip_topk_offset": 0, "routed_scaling_factor": 2.5},
    supported=GLM_ROUTER | {"attention_bias": (False, None), "index_topk_pattern": (None,)},
    traits={"qk_norm": "none"},
    router="sigmoid",
    untrained=(MTP_LAYER, "model.layers.*.self_attn.indexer."),
    beside=indexers,
)
