"""Random checkpoints of every family as Hugging Face releases them, and Hugging Face's log-probs: for tests.

config.json has the spelling of the released files (transformers renames several keys when it saves, and SGLang reads
the released ones); the tensors are those of the transformers class, under their names on disk, one for each expert.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.backends.sglang.cpu import install_torchvision_ops
from rlrun.data.tiny_model import EOS_ID, PAD_ID, _write_tokenizer
from rlrun.plan.types import ModelSpec

EPS_OF_LATENT_NORMS = ("glm4_moe_lite", "glm_moe_dsa")
"""Families whose latent norms transformers computes with 1e-6, whatever rms_norm_eps says (SGLang follows the key)."""


def released_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a model of this shape, as the family's releases spell it."""
    config = {
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "vocab_size": spec.vocab_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "max_position_embeddings": spec.max_position_embeddings,
        "tie_word_embeddings": spec.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": spec.qkv_bias,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "float32",
    }
    return OWN[spec.family](config, spec)


def _qwen3_moe(config: dict, spec: ModelSpec) -> dict:
    own = {"head_dim": spec.head_dim, "intermediate_size": 2 * spec.hidden_size, "norm_topk_prob": True}
    own |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": spec.moe.num_experts}
    own |= {"num_experts_per_tok": spec.moe.experts_per_token, "moe_intermediate_size": spec.moe.ffn_hidden_size}
    return config | own | _is("qwen3_moe", "Qwen3MoeForCausalLM")


def _glm4(config: dict, spec: ModelSpec) -> dict:
    own = {"head_dim": spec.head_dim, "intermediate_size": spec.ffn_hidden_size}
    own |= {"partial_rotary_factor": spec.rotary_fraction}
    return config | own | _is("glm4", "Glm4ForCausalLM")


def _glm_experts(spec: ModelSpec) -> dict:
    return {
        "intermediate_size": spec.ffn_hidden_size,
        "moe_intermediate_size": spec.moe.ffn_hidden_size,
        "n_routed_experts": spec.moe.num_experts,
        "n_shared_experts": spec.moe.shared_ffn_hidden_size // spec.moe.ffn_hidden_size,
        "num_experts_per_tok": spec.moe.experts_per_token,
        "first_k_dense_replace": spec.moe.first_dense,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
    }


def _glm4_moe(config: dict, spec: ModelSpec) -> dict:
    own = {"head_dim": spec.head_dim, "partial_rotary_factor": spec.rotary_fraction, "use_qk_norm": True}
    return config | own | _glm_experts(spec) | _is("glm4_moe", "Glm4MoeForCausalLM")


def _latent(spec: ModelSpec) -> dict:
    mla = spec.mla
    own = {"q_lora_rank": mla.q_rank, "kv_lora_rank": mla.kv_rank, "rope_interleave": True}
    own |= {"qk_nope_head_dim": mla.nope_dim, "qk_rope_head_dim": mla.rope_dim}
    return own | {"v_head_dim": mla.v_dim, "rope_scaling": None}


def _glm4_moe_lite(config: dict, spec: ModelSpec) -> dict:
    own = _glm_experts(spec) | _latent(spec) | {"topk_method": "noaux_tc"}
    return config | own | _is("glm4_moe_lite", "Glm4MoeLiteForCausalLM")


def _glm_moe_dsa(config: dict, spec: ModelSpec) -> dict:
    index = spec.indexer
    own = {"index_n_heads": index.num_heads, "index_head_dim": index.head_dim, "index_topk": index.top_k}
    own |= {"indexer_rope_interleave": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
    own |= _glm_experts(spec) | _latent(spec)
    return config | own | _is("glm_moe_dsa", "GlmMoeDsaForCausalLM")


def _minimax_m2(config: dict, spec: ModelSpec) -> dict:
    own = {
        "head_dim": spec.head_dim,
        "rotary_dim": int(spec.head_dim * spec.rotary_fraction),
        "intermediate_size": spec.moe.ffn_hidden_size,
        "num_local_experts": spec.moe.num_experts,
        "num_experts_per_tok": spec.moe.experts_per_token,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
        "attn_type_list": [1] * spec.num_layers,
    }
    return config | own | _is("minimax_m2", "MiniMaxM2ForCausalLM")


def _qwen3_5(config: dict, spec: ModelSpec) -> dict:
    delta = spec.linear_attention
    experts = spec.moe is not None
    text = config | {
        "model_type": "qwen3_5_moe_text" if experts else "qwen3_5_text",
        "head_dim": spec.head_dim,
        "attn_output_gate": True,
        "full_attention_interval": delta.full_interval,
        "linear_num_key_heads": delta.num_key_heads,
        "linear_num_value_heads": delta.num_value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.conv_kernel,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": spec.rope_theta,
            "partial_rotary_factor": spec.rotary_fraction,
            "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
        },
    }
    del text["rope_theta"]
    if experts:
        text |= {"num_experts": spec.moe.num_experts, "num_experts_per_tok": spec.moe.experts_per_token}
        text |= {"moe_intermediate_size": spec.moe.ffn_hidden_size}
        text |= {"shared_expert_intermediate_size": spec.moe.shared_ffn_hidden_size}
    else:
        text |= {"intermediate_size": spec.ffn_hidden_size}
    kind = "qwen3_5_moe" if experts else "qwen3_5"
    vision = {"model_type": kind, "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
    vision |= {"out_hidden_size": spec.hidden_size, "num_position_embeddings": 16, "deepstack_visual_indexes": []}
    top = {"text_config": text, "vision_config": vision, "tie_word_embeddings": spec.tied_embeddings}
    # Ids that no text has.
    special = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    top |= {name: spec.vocab_size + i for i, name in enumerate(special)}
    return top | _is(kind, "Qwen3_5MoeForConditionalGeneration" if experts else "Qwen3_5ForConditionalGeneration")


def _is(model_type: str, architecture: str) -> dict:
    return {"model_type": model_type, "architectures": [architecture]}


OWN = {
    "qwen3_moe": _qwen3_moe,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": _glm4_moe_lite,
    "glm_moe_dsa": _glm_moe_dsa,
    "minimax_m2": _minimax_m2,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": _qwen3_5,
}


class Reference:
    """A random model of transformers with norms, biases and router biases away from their defaults."""

    def __init__(self, spec: ModelSpec, alphabet: str, seed: int = 0):
        install_torchvision_ops()
        import transformers

        self.spec, self.alphabet, self.config = spec, alphabet, released_config(spec)
        kind = getattr(transformers, self.config["architectures"][0])
        torch.manual_seed(seed)
        self.model = kind._from_config(kind.config_class.from_dict(dict(self.config)), dtype=torch.float32).eval()
        if spec.family in EPS_OF_LATENT_NORMS:
            for name, module in self.model.named_modules():
                if name.endswith("_a_layernorm"):
                    module.variance_epsilon = spec.rms_norm_eps
        if spec.family == "minimax_m2":  # this release of transformers rotates whole heads whatever rotary_dim says
            rotary = self.model.model.rotary_emb
            dim = self.config["rotary_dim"]
            rotary.inv_freq = spec.rope_theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        self.perturb(seed + 1, 1.0)

    @torch.no_grad()
    def perturb(self, seed: int, scale: float) -> None:
        """Moves every weight: matrices by `scale` times 0.1, the rest by `scale` times 0.3, routers' by more."""
        generator = torch.Generator().manual_seed(seed)
        for name, tensor in self._tensors():
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.add_(noise * scale * (0.1 if tensor.dim() >= 2 and "gate.weight" not in name else 0.3))

    def _tensors(self):
        yield from self.model.named_parameters()
        yield from ((n, b) for n, b in self.model.named_buffers() if n.endswith("e_score_correction_bias"))

    def save(self, directory: str, dtype: torch.dtype = torch.float32) -> str:
        """Writes a checkpoint with tokenizer; router biases stay float32. Returns the directory."""
        from safetensors.torch import save_file

        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        save_file(dict(self.named_tensors(dtype)), path / "model.safetensors", metadata={"format": "pt"})
        config = self.config | {"torch_dtype": str(dtype).removeprefix("torch.")}
        (path / "config.json").write_text(json.dumps(config))
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID, "pad_token_id": PAD_ID}))
        _write_tokenizer(path, self.alphabet)
        return str(path)

    def named_tensors(self, dtype: torch.dtype = torch.float32) -> list[tuple[str, torch.Tensor]]:
        """The checkpoint's tensors by their names on disk, what a trainer would send."""
        from transformers.core_model_loading import revert_weight_conversion

        state = {k: v.detach() for k, v in self.model.state_dict().items()}
        named = revert_weight_conversion(self.model, state)
        if self.spec.tied_embeddings:
            named.pop("lm_head.weight", None)
        keep = ("e_score_correction_bias", "A_log")
        return [(n, t.contiguous().clone() if n.endswith(keep) else t.to(dtype).contiguous()) for n, t in named.items()]

    @torch.no_grad()
    def logprobs(self, token_ids) -> np.ndarray:
        """Log-probs [T - 1] of token_ids[1:]."""
        ids = torch.tensor([list(token_ids)])
        table = self.model(ids).logits[0].float().log_softmax(-1)[:-1]
        return table.gather(1, ids[0, 1:, None]).squeeze(1).numpy()
