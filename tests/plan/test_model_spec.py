from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.errors import RlrunError
from rlrun.families import FAMILIES
from rlrun.plan.build import load_plan
from rlrun.plan.model_spec import make_spec, spec_from_directory
from rlrun.plan.parameters import count_parameters

# Layers, hidden, heads, MLP, tied, and the total counted from the released checkpoints.
QWEN3 = {
    "0.6B": (28, 1024, 16, 3072, True, 596_049_920),
    "1.7B": (28, 2048, 16, 6144, True, 1_720_574_976),
    "4B": (36, 2560, 32, 9728, True, 4_022_468_096),
    "8B": (36, 4096, 32, 12288, False, 8_190_735_360),
    "14B": (40, 5120, 40, 17408, False, 14_768_307_200),
    "32B": (64, 5120, 64, 25600, False, 32_762_123_264),
}


def architecture(layers: int, hidden: int, heads: int, ffn: int, tied: bool) -> dict:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": ffn,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": tied,
    }


@pytest.mark.parametrize("size", QWEN3)
def test_parameters_of_every_dense_qwen3_are_exact(size):
    *shape, total = QWEN3[size]
    spec = make_spec("qwen3", architecture(*shape))
    assert spec.num_parameters == count_parameters(spec) == total


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 60),
    st.integers(1, 50),
    st.booleans(),
)
def test_the_count_is_that_of_the_tensors_of_a_checkpoint(layers, h, kv, per_kv, d, ffn, vocab, tied):
    """Against the names and shapes that `rlrun.data.tiny_model` writes."""
    import numpy as np

    from rlrun.families import hf_shapes

    a = {
        "hidden_size": h,
        "num_hidden_layers": layers,
        "num_attention_heads": kv * per_kv,
        "num_key_value_heads": kv,
        "head_dim": d,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }
    spec = make_spec("qwen3", a)
    assert spec.num_parameters == sum(int(np.prod(shape)) for shape in hf_shapes(spec).values())


def test_shipped_models_have_the_sizes_they_claim():
    assert load_plan(["+experiment=qwen3_grpo"]).model.spec.num_parameters == QWEN3["4B"][-1]
    tiny = load_plan(["+experiment=quickstart"]).model.spec.num_parameters
    assert 100_000 < tiny < 1_000_000


def write(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


OPTIONAL = ("rms_norm_eps", "rope_theta", "max_position_embeddings")
SIZES = {
    "model_type": "qwen3",
    **{name: value for name, value in architecture(2, 64, 8, 96, True).items() if name not in OPTIONAL},
}


def test_a_specification_is_read_from_config_json(tmp_path):
    spec = spec_from_directory(write(tmp_path, **SIZES, rope_theta=5e6, rms_norm_eps=1e-5, max_position_embeddings=99))
    assert (spec.hidden_size, spec.num_heads, spec.rope_theta, spec.rms_norm_eps) == (64, 8, 5e6, 1e-5)
    assert spec.tied_embeddings
    assert spec.max_position_embeddings == 99


def test_transformers_5_keeps_rope_theta_in_rope_parameters(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 1e6}
    assert spec_from_directory(write(tmp_path, **SIZES, rope_parameters=rope)).rope_theta == 1e6


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "qwen3_moe"}, "qwen3_moe"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"quantization_config": {"bits": 8}}, "quantization_config"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_what_the_mapping_does_not_compute_is_refused(tmp_path, change, word):
    with pytest.raises(RlrunError) as e:
        spec_from_directory(write(tmp_path, **(SIZES | change)))
    [problem] = e.value.problems
    assert problem.code == "model-unsupported"
    assert word in problem.summary


def test_a_folder_without_a_readable_config_json_is_no_model(tmp_path):
    for text in (None, "{", "[]"):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        with pytest.raises(RlrunError) as e:
            spec_from_directory(str(tmp_path))
        assert [p.code for p in e.value.problems] == ["model-not-found"]


@pytest.mark.engines  # transformers takes seconds to import
@pytest.mark.parametrize("size", ["0.6B", "8B"])
def test_defaults_of_absent_keys_are_those_of_transformers(size, tmp_path):
    """HF's own class, in the version the engines use, agrees about keys that config.json leaves out."""
    from transformers import Qwen3Config

    *shape, _ = QWEN3[size]
    sizes = architecture(*shape)
    defaults = FAMILIES["qwen3"].defaults
    absent = {k: v for k, v in sizes.items() if k not in defaults}
    ours, theirs = spec_from_directory(write(tmp_path, model_type="qwen3", **absent)), Qwen3Config(**absent)
    rope = getattr(theirs, "rope_parameters", None) or {"rope_theta": theirs.rope_theta}
    assert ours.head_dim == theirs.head_dim
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rope_theta == rope["rope_theta"]
