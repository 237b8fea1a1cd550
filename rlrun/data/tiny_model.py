"""A random Qwen3 checkpoint and a character-level tokenizer, made offline: what `model.init: random` trains.

The tokenizer knows three special tokens and the characters of an alphabet, one token each, so that a prompt of ten
characters is ten tokens and a tiny model can learn it in seconds. Its chat template writes `<|im_start|>` and the
content for each message, then `<|im_start|>` for the answer: roles are not spelled out, because the alphabet may lack
their letters. The answer ends with `<|im_end|>`, the end-of-sequence token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlrun.errors import Problem, RlrunError
from rlrun.plan.types import ModelSpec

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD_ID, START_ID, EOS_ID = range(3)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
INIT_STD = 0.02


def make_random_model(directory: str, spec: ModelSpec, alphabet: str, seed: int, dtype: str) -> None:
    """Writes config.json, model.safetensors and the tokenizer files into `directory`.

    Matrices are normal(0, 0.02), norms 1; the same `seed` and `spec` give the same bytes on any machine, in float32.
    `dtype` is float32 or bfloat16 (the float32 draw, rounded).

    Raises RlrunError when the alphabet repeats a character or does not fit into `spec.vocab_size`.
    """
    import torch
    from safetensors.torch import save_file

    check_alphabet(alphabet, spec.vocab_size)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    torch_dtype = getattr(torch, dtype)
    weights = {name: torch.from_numpy(array).to(torch_dtype) for name, array in _weights(spec, seed)}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    _write_json(path / "config.json", _config(spec, dtype))
    _write_json(path / "generation_config.json", {"eos_token_id": EOS_ID, "pad_token_id": PAD_ID, "do_sample": True})
    _write_tokenizer(path, alphabet)


def check_alphabet(alphabet: str, vocab_size: int) -> None:
    """Raises RlrunError unless every character is there once and the vocabulary has room for it."""
    repeated = sorted({c for c in alphabet if alphabet.count(c) > 1})
    if repeated:
        raise RlrunError(
            Problem(
                "alphabet-repeats",
                f"model.alphabet has {', '.join(map(repr, repeated))} more than once",
                hint="write every character once",
            )
        )
    needed = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < needed:
        raise RlrunError(
            Problem(
                "vocab-too-small",
                f"a vocabulary of {vocab_size} cannot hold {len(alphabet)} characters "
                f"and {len(SPECIAL_TOKENS)} special tokens",
                hint=f"set model.architecture.vocab_size to {needed} or more",
            )
        )


def refuse_unknown_characters(text: str, alphabet: str, where: str) -> None:
    """Raises RlrunError naming the characters of `text` that the alphabet lacks; `where` names the text, e.g. its row.

    The tokenizer refuses them too, but `tokenizers` only says that an [UNK] token is missing.
    """
    for special in SPECIAL_TOKENS:
        text = text.replace(special, "")
    unknown = sorted(set(text) - set(alphabet))
    if unknown:
        shown = ", ".join(map(repr, unknown[:10]))
        raise RlrunError(
            Problem(
                "unknown-character",
                f"{where} contains {shown}, which model.alphabet does not have",
                hint=f"add them to model.alphabet, now {alphabet!r}",
            )
        )


def _weights(spec: ModelSpec, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names and shapes of Qwen3ForCausalLM, float32. Each tensor has a stream of its own (seed, its position)."""
    for index, (name, shape) in enumerate(_shapes(spec)):
        if len(shape) == 1:
            yield name, np.ones(shape, dtype=np.float32)
        else:
            draw = np.random.Generator(np.random.PCG64([seed, index])).standard_normal(shape)
            yield name, (draw * INIT_STD).astype(np.float32)


def _shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    h, f, d = spec.hidden_size, spec.ffn_hidden_size, spec.head_dim
    q, kv = spec.num_heads * d, spec.num_kv_heads * d
    yield "model.embed_tokens.weight", (spec.vocab_size, h)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (h,)
        yield prefix + "self_attn.q_proj.weight", (q, h)
        yield prefix + "self_attn.k_proj.weight", (kv, h)
        yield prefix + "self_attn.v_proj.weight", (kv, h)
        yield prefix + "self_attn.o_proj.weight", (h, q)
        yield prefix + "self_attn.q_norm.weight", (d,)
        yield prefix + "self_attn.k_norm.weight", (d,)
        yield prefix + "post_attention_layernorm.weight", (h,)
        yield prefix + "mlp.gate_proj.weight", (f, h)
        yield prefix + "mlp.up_proj.weight", (f, h)
        yield prefix + "mlp.down_proj.weight", (h, f)
    yield "model.norm.weight", (h,)
    if not spec.tied_embeddings:
        yield "lm_head.weight", (spec.vocab_size, h)


def _config(spec: ModelSpec, dtype: str) -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "initializer_range": INIT_STD,
        "intermediate_size": spec.ffn_hidden_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": spec.vocab_size,
    }


def _write_tokenizer(path: Path, alphabet: str) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    # WordLevel without an unknown token in its vocabulary refuses what it does not know; BPE would drop it silently.
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[EOS_ID],
        "pad_token": SPECIAL_TOKENS[PAD_ID],
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(path / "tokenizer_config.json", settings)


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
