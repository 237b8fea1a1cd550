from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.backends.sglang.cpu import install_torchvision_ops
from rlrun.data.tiny_model import check_alphabet, make_random_model, refuse_unknown_characters
from rlrun.errors import RlrunError
from rlrun.families import FAMILIES, hf_tensors
from rlrun.plan.build import load_plan
from rlrun.plan.model_spec import spec_from_directory
from rlrun.plan.types import ModelSpec
from rlrun.plan.weight_files import read_weight_files
from rlrun.plan.weight_names import account

install_torchvision_ops()  # transformers imports torchvision

ALPHABET = "0123456789+= abc\n"


def spec(**changes) -> ModelSpec:
    values = {
        "family": "qwen3",
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "ffn_hidden_size": 64,
        "vocab_size": 24,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "max_position_embeddings": 128,
        "tied_embeddings": False,
        "num_parameters": 0,
    }
    return ModelSpec(**{**values, **changes})


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("tiny")
    make_random_model(str(directory), spec(), ALPHABET, seed=3, dtype="float32")
    return str(directory)


@pytest.fixture(scope="module")
def tokenizer(model_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.mark.parametrize("tied", [False, True])
def test_hugging_face_loads_every_weight(tmp_path, tied):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    make_random_model(str(tmp_path), spec(tied_embeddings=tied), ALPHABET, seed=3, dtype="float32")
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.float32
    state = model.state_dict()
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(state[name], tensor), name
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    logits = model(torch.tensor([[1, 5, 6]])).logits
    assert logits.shape == (1, 3, 24)
    assert torch.isfinite(logits).all()


def test_matrices_are_normal_and_norms_are_one(model_dir):
    from safetensors.numpy import load_file

    weights = load_file(f"{model_dir}/model.safetensors")
    matrices = np.concatenate([w.ravel() for w in weights.values() if w.ndim == 2])
    assert abs(matrices.mean()) < 4 * 0.02 / np.sqrt(matrices.size)
    assert abs(matrices.std() / 0.02 - 1) < 4 / np.sqrt(2 * matrices.size)
    assert all((w == 1).all() for w in weights.values() if w.ndim == 1)


def test_the_seed_decides_the_weights(tmp_path, model_dir):
    for name, seed in (("again", 3), ("other", 4)):
        make_random_model(str(tmp_path / name), spec(), ALPHABET, seed=seed, dtype="float32")
    first = Path(f"{model_dir}/model.safetensors").read_bytes()
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == first
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != first


def test_bfloat16_weights_are_the_rounded_float32_ones(tmp_path, model_dir):
    import torch
    from safetensors.torch import load_file

    make_random_model(str(tmp_path), spec(), ALPHABET, seed=3, dtype="bfloat16")
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    exact = load_file(f"{model_dir}/model.safetensors")
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, exact[name].to(torch.bfloat16)), name


@settings(deadline=None, max_examples=50)
@given(text=st.text(alphabet=ALPHABET, min_size=1, max_size=30))
def test_every_character_is_one_token_and_text_survives_the_round_trip(tokenizer, text):
    ids = tokenizer(text).input_ids
    assert ids == [3 + ALPHABET.index(c) for c in text]
    assert tokenizer.decode(ids) == text


def test_the_chat_template_marks_turns_without_spelling_out_roles(tokenizer):
    messages = [{"role": "system", "content": "ab"}, {"role": "user", "content": "1+2="}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    a, b, one, plus, two, equals = (3 + ALPHABET.index(c) for c in "ab1+2=")
    assert ids == [1, a, b, 1, one, plus, two, equals, 1]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    assert tokenizer.decode([one, two, 2], skip_special_tokens=True) == "12"


def test_the_tokenizer_refuses_an_unknown_character(tokenizer):
    with pytest.raises(Exception, match=r"Missing \[UNK\] token"):
        tokenizer("1+x=")


def test_unknown_characters_are_named_with_their_place():
    refuse_unknown_characters("<|im_start|>1+2=", ALPHABET, "row 1")
    with pytest.raises(RlrunError) as error:
        refuse_unknown_characters("1+x=Z", ALPHABET, "row 7 of train.jsonl")
    (problem,) = error.value.problems
    assert problem.code == "unknown-character"
    assert problem.summary == "row 7 of train.jsonl contains 'Z', 'x', which model.alphabet does not have"


def test_an_alphabet_that_repeats_or_does_not_fit_is_refused():
    with pytest.raises(RlrunError, match=r"alphabet-repeats: model.alphabet has 'a' more than once"):
        check_alphabet("abca", 100)
    with pytest.raises(RlrunError, match="vocab-too-small") as error:
        check_alphabet("abcd", 6)
    assert error.value.problems[0].hint == "set model.architecture.vocab_size to 7 or more"
    check_alphabet("abcd", 7)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_random_checkpoint_of_any_family_is_one_that_the_plan_accepts(tmp_path, family):
    """config.json says the same architecture, and every tensor has its place."""
    spec = load_plan(["+experiment=quickstart", f"model=tiny_{family}"]).model.spec
    make_random_model(str(tmp_path), spec, "0123456789 ", seed=1, dtype="bfloat16")
    assert spec_from_directory(str(tmp_path), family) == spec
    stored = read_weight_files(tmp_path).tensors
    found = account(stored, spec)
    assert [*found.missing, *found.unexpected, *found.misshapen, *found.unreadable] == []
    assert {name for name, *_ in hf_tensors(spec)} == set(found.sources)
    kinds = {stored[name].dtype for name, _, weight in hf_tensors(spec) if weight.float32}
    assert kinds <= {"F32"}
