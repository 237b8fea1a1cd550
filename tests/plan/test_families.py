"""Every family: exact parameter totals of the released checkpoints, and config.json as they write it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rlrun.config.shipped import shipped
from rlrun.errors import RlrunError
from rlrun.families import FAMILIES, hf_tensors
from rlrun.plan.build import load_plan, plan_from_json, plan_to_json, replan
from rlrun.plan.model_spec import read_architecture, spec_from_directory
from rlrun.plan.parameters import stage_parameters, stage_sizes

# Parameters of the released text models, without multi-token-prediction layers and vision towers.
TOTALS = {
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "qwen3_coder_480b_a35b": 480_154_875_392,
    "qwen3_5_0_8b": 752_393_024,
    "qwen3_5_2b": 1_881_825_088,
    "qwen3_5_4b": 4_205_751_296,
    "qwen3_5_9b": 8_953_803_264,
    "qwen3_5_27b": 26_895_998_464,
    "qwen3_5_35b_a3b": 34_660_610_688,
    "qwen3_5_122b_a10b": 122_111_526_912,
    "qwen3_5_397b_a17b": 396_346_350_336,
    "glm4_9b": 9_400_279_040,
    "glm4_32b": 32_566_081_536,
    "glm4_5_air": 106_852_245_504,
    "glm4_5_355b": 352_797_814_784,
    "glm4_6_355b": 352_797_814_784,
    "glm4_7_355b": 352_797_814_784,
    "glm4_7_flash": 29_943_390_976,
    "glm5": 743_911_199_232,
    "glm5_2": 743_377_000_704,
    "minimax_m2": 228_689_748_992,
    "minimax_m2_5": 228_689_748_992,
    "minimax_m2_7": 228_689_748_992,
}
# Without a GPU no memory is judged, so a laptop can plan any size.
ON_CPU = ["+experiment=qwen3_grpo", "placement=cpu_1", "rollout.max_response_tokens=1536"]


def test_every_shipped_model_is_counted_here():
    shipped_models = {p.stem for p in (shipped("conf") / "model").glob("*.yaml")}
    assert shipped_models == set(TOTALS) | {f"tiny_{family}" for family in FAMILIES}


@pytest.mark.parametrize("model", TOTALS)
def test_a_shipped_model_plans_with_its_exact_number_of_parameters(model):
    plan = load_plan([*ON_CPU, f"model={model}"])
    assert plan.model.spec.num_parameters == TOTALS[model]
    text = (shipped("conf") / "model" / f"{model}.yaml").read_text()
    assert f"{TOTALS[model]:,} parameters" in text
    assert plan_from_json(plan_to_json(plan)) == plan
    assert replan(plan, []).config_hash == plan.config_hash


@pytest.mark.parametrize("model", [m for m in TOTALS if not m.startswith("qwen3_0") and m != "glm4_32b"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_ranks_and_stages_together_have_the_whole_model(model, tp):
    """Divided weights once, replicated ones (norms, routers, latent projections) at most tp times."""
    spec = load_plan([*ON_CPU, f"model={model}"]).model.spec
    for pp in (1, 2):
        if spec.num_layers % pp:
            continue
        whole = sum(plain + experts for plain, experts in stage_parameters(spec, 1, stage_sizes(spec.num_layers, pp)))
        tied_copy = spec.vocab_size * spec.hidden_size if spec.tied_embeddings and pp > 1 else 0
        assert whole == spec.num_parameters + tied_copy
        ranks = [stage_parameters(spec, tp, stage_sizes(spec.num_layers, pp), ep=tp) for _ in range(tp)]
        together = sum(plain + experts for rank in ranks for plain, experts in rank)
        assert whole <= together < 1.1 * whole


RAW = {
    "qwen3_30b_a3b": {
        "model_type": "qwen3_moe",
        "hidden_act": "silu",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "qwen3_5_27b": {
        "model_type": "qwen3_5",
        "vision_config": {"depth": 27, "hidden_size": 1152},
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_act": "silu",
            "head_dim": 256,
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_hidden_layers": 64,
            "num_attention_heads": 24,
            "num_key_value_heads": 4,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 48,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-6,
            "vocab_size": 248320,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        },
    },
    "glm4_5_air": {
        "model_type": "glm4_moe",
        "hidden_act": "silu",
        "attention_bias": True,
        "use_qk_norm": False,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_hidden_layers": 46,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "routed_scaling_factor": 1.0,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1000000,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "vocab_size": 151552,
    },
    "glm5_2": {
        "model_type": "glm_moe_dsa",
        "hidden_act": "silu",
        "head_dim": 192,  # means nothing
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_attention_heads": 64,
        "num_hidden_layers": 78,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "routed_scaling_factor": 2.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 8000000},
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "vocab_size": 154880,
    },
    "minimax_m2": {
        "model_type": "minimax_m2",
        "hidden_act": "silu",
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "shared_intermediate_size": 0,
        "num_attention_heads": 48,
        "num_hidden_layers": 62,
        "num_key_value_heads": 8,
        "rotary_dim": 64,
        "rope_theta": 5000000,
        "max_position_embeddings": 196608,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "vocab_size": 200064,
        "quantization_config": {"quant_method": "fp8"},
    },
}


def write(folder: Path, config: dict) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("model", RAW)
def test_config_json_says_the_same_as_the_shipped_model(model, tmp_path):
    planned = load_plan([*ON_CPU, f"model={model}"]).model.spec
    assert spec_from_directory(write(tmp_path, RAW[model]), planned.family) == planned


@pytest.mark.parametrize(
    ("model", "change", "word"),
    [
        ("qwen3_30b_a3b", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3_30b_a3b", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3_30b_a3b", {"model_type": "qwen3"}, "model_type"),
        ("qwen3_30b_a3b", {"num_experts": None}, "num_experts"),
        ("glm4_5_air", {"n_group": 8}, "n_group"),
        ("glm4_5_air", {"n_routed_experts": None}, "n_routed_experts"),
        ("glm4_5_air", {"use_qk_norm": None}, "use_qk_norm"),
        ("glm5_2", {"index_topk_pattern": "FSSF"}, "index_topk_pattern"),
        ("glm5_2", {"mlp_layer_types": ["sparse", "dense"]}, "first_k_dense_replace"),
        ("minimax_m2", {"shared_intermediate_size": 512}, "shared_intermediate_size"),
        ("minimax_m2", {"rotary_dim": None}, "partial_rotary_factor"),
    ],
)
def test_another_router_or_an_absent_size_is_refused(model, change, word, tmp_path):
    family = load_plan([*ON_CPU, f"model={model}"]).model.spec.family
    with pytest.raises(RlrunError) as e:
        read_architecture(write(tmp_path, RAW[model] | change), family)
    [problem] = e.value.problems
    assert problem.code == "model-unsupported"
    assert word in problem.summary


def test_shared_indexers_are_where_the_checkpoint_has_them():
    spec = load_plan([*ON_CPU, "model=glm5_2"]).model.spec
    assert spec.indexer is not None
    assert spec.indexer.full_layers == (0, 1, 2, *range(6, 75, 4))


@pytest.mark.parametrize("model", TOTALS)
def test_the_table_of_a_family_has_every_parameter_of_every_shipped_model(model):
    """The name map against the closed form; the plan does not count router biases, the trainer does not hold
    indexers."""
    spec = load_plan([*ON_CPU, f"model={model}"]).model.spec
    mapped = sum(
        math.prod(shape) for name, shape, _ in hf_tensors(spec) if not name.endswith("e_score_correction_bias")
    )
    indexers = 0
    if spec.indexer is not None:
        i, h = spec.indexer, spec.hidden_size
        assert spec.mla is not None
        each = spec.mla.q_rank * i.num_heads * i.head_dim + h * i.head_dim + 2 * i.head_dim + h * i.num_heads
        indexers = each * len(i.full_layers)
    assert mapped + indexers == spec.num_parameters == TOTALS[model]


def test_config_json_as_transformers_5_saves_it_says_the_same(tmp_path):
    moe = dict(RAW["qwen3_30b_a3b"])
    moe["num_local_experts"] = moe.pop("num_experts")
    assert spec_from_directory(write(tmp_path, moe), "qwen3_moe").moe.num_experts == 128

    hybrid = json.loads(json.dumps(RAW["qwen3_5_27b"]))
    text = hybrid["text_config"]
    del text["full_attention_interval"]
    text["layer_types"] = (["linear_attention"] * 3 + ["full_attention"]) * 16
    assert spec_from_directory(write(tmp_path, hybrid), "qwen3_5").linear_attention.full_interval == 4
    text["layer_types"][5] = "full_attention"
    with pytest.raises(RlrunError, match="full_attention_interval"):
        spec_from_directory(write(tmp_path, hybrid), "qwen3_5")
