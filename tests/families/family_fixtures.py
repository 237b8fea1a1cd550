"""One tiny model of every family, as the config.json that releases of the family have. No torch, no transformers.

`logit_sum` is what transformers 5.24.0 with torch 2.13.0 computed on CPU for the model as its class initialises it: the
sum of all logits of 24 random tokens. A class that changes what it computes, or that reads a released config.json in
another way than before, changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]

COMMON: Config = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 256,
}
HEADS: Config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}

QWEN3: Config = COMMON | {
    **HEADS,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "intermediate_size": 128,
    "max_window_layers": 2,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
}

QWEN3_5: Config = COMMON | {
    "attention_bias": False,
    "attn_output_gate": True,
    "eos_token_id": 2,
    "full_attention_interval": 4,
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
}
QWEN3_5_DENSE: Config = QWEN3_5 | {"intermediate_size": 128, "tie_word_embeddings": True}
QWEN3_5_MOE: Config = QWEN3_5 | {
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 32,
    "tie_word_embeddings": False,
}
VISION: Config = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
    "patch_size": 4,
}
MEDIA_TOKENS: Config = {
    "image_token_id": 250,
    "video_token_id": 251,
    "vision_start_token_id": 252,
    "vision_end_token_id": 253,
}

GLM_ROUTER: Config = {
    "moe_intermediate_size": 32,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1,
    "topk_group": 1,
}
GLM: Config = COMMON | {"eos_token_id": [1], "pad_token_id": 0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
GLM4_MOE: Config = GLM | {
    **HEADS,
    **GLM_ROUTER,
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
}
LATENT: Config = GLM | {
    **GLM_ROUTER,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "intermediate_size": 128,
    "kv_lora_rank": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "topk_method": "noaux_tc",
    "v_head_dim": 24,
}
# As many tokens selected as any sequence here has: attention is then dense. Eight heads, because the scores of two are
# exactly 0 for many pairs (a ReLU), and a selection among equals depends on the length of the sequence.
DSA: Config = LATENT | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "ep_size": 1,
    "head_dim": 8,
    "index_head_dim": 16,
    "index_n_heads": 8,
    "index_topk": 512,
    "indexer_rope_interleave": True,
    "model_type": "glm_moe_dsa",
    "moe_layer_freq": 1,
    "num_hidden_layers": 3,
    "qk_head_dim": 24,
    "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
}
SMALL_INDEXER: Config = {"index_n_heads": 2, "index_topk": 8}


def vision_language(model_type: str, architecture: str, text: Config) -> Config:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": text | {"model_type": f"{model_type}_text"},
        "tie_word_embeddings": text["tie_word_embeddings"],
        "vision_config": VISION | {"model_type": model_type},
        **MEDIA_TOKENS,
    }


@dataclass(frozen=True)
class Fixture:
    """`logit_sum` holds with `summed` changed in the configuration."""

    family: str
    config: Mapping[str, Any]
    logit_sum: float
    summed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> Mapping[str, Any]:
        """The configuration of the text model."""
        return self.config.get("text_config", self.config)


FIXTURES: dict[str, Fixture] = {
    "qwen3": Fixture(
        "qwen3",
        QWEN3 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True},
        33.7146,
    ),
    "qwen3_moe": Fixture(
        "qwen3_moe",
        QWEN3
        | {
            "architectures": ["Qwen3MoeForCausalLM"],
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            "tie_word_embeddings": False,
        },
        -27.7530,
    ),
    "qwen3_5_text": Fixture(
        "qwen3_5",
        QWEN3_5_DENSE | {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"},
        16.2393,
    ),
    "qwen3_5_moe_text": Fixture(
        "qwen3_5_moe",
        QWEN3_5_MOE | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"},
        -0.7979,
    ),
    "qwen3_5": Fixture(
        "qwen3_5", vision_language("qwen3_5", "Qwen3_5ForConditionalGeneration", QWEN3_5_DENSE), 33.0636
    ),
    "qwen3_5_moe": Fixture(
        "qwen3_5_moe", vision_language("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", QWEN3_5_MOE), -2.3625
    ),
    "glm4": Fixture(
        "glm4",
        GLM
        | {
            **HEADS,
            "architectures": ["Glm4ForCausalLM"],
            "attention_bias": True,
            "intermediate_size": 128,
            "model_type": "glm4",
            "num_hidden_layers": 2,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
        },
        49.7116,
    ),
    "glm4_moe": Fixture(
        "glm4_moe", GLM4_MOE | {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}, 4.7547
    ),
    "glm4_moe_air": Fixture(
        "glm4_moe",
        GLM4_MOE
        | {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "routed_scaling_factor": 1.0,
            "use_qk_norm": False,
        },
        13.7312,
    ),
    "glm4_moe_lite": Fixture(
        "glm4_moe_lite",
        LATENT
        | {
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "model_type": "glm4_moe_lite",
            "num_hidden_layers": 2,
            "partial_rotary_factor": 1.0,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "routed_scaling_factor": 1.8,
        },
        2.3805,
    ),
    "glm_moe_dsa": Fixture("glm_moe_dsa", DSA, 20.7336, SMALL_INDEXER),
    "glm_moe_dsa_52": Fixture(
        "glm_moe_dsa",
        DSA
        | {
            "index_skip_topk_offset": 3,
            "index_topk_freq": 4,
            "indexer_types": ["full", "full", "full", "shared"],
            "num_hidden_layers": 4,
        },
        23.6421,
        SMALL_INDEXER,
    ),
    "minimax_m2": Fixture(
        "minimax_m2",
        COMMON
        | {
            **HEADS,
            "architectures": ["MiniMaxM2ForCausalLM"],
            "attn_type_list": [1, 1],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "intermediate_size": 32,
            "model_type": "minimax_m2",
            "mtp_transformer_layers": 1,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 2,
            "num_local_experts": 8,
            "num_mtp_modules": 3,
            "output_router_logits": False,
            "qk_norm_type": "per_layer",
            "rms_norm_eps": 1e-6,
            "rope_theta": 5000000,
            "rotary_dim": 8,
            "router_aux_loss_coef": 0.001,
            "router_jitter_noise": 0.0,
            "scoring_func": "sigmoid",
            "shared_intermediate_size": 0,
            "tie_word_embeddings": False,
            "use_mtp": True,
            "use_qk_norm": True,
            "use_routing_bias": True,
        },
        -28.7627,
    ),
}
