"""A random checkpoint of any family and a character-level tokenizer, made offline: what `model.init: random` trains.

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
from rlrun.families import beside, hf_config, hf_tensors
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

    Matrices are normal(0, 0.02), norms start at one; the same `seed` and `spec` give the same bytes on any machine, in
    float32. `dtype` is float32 or bfloat16 (the float32 draw, rounded).

    Raises RlrunError when the alphabet repeats a character or does not fit into `spec.vocab_size`.
    """
    import torch
    from safetensors.torch import save_file

    check_alphabet(alphabet, spec.vocab_size)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    torch_dtype = getattr(torch, dtype)
    float32 = {name for name, _, weight in hf_tensors(spec) if weight.float32}
    weights = {
        name: torch.from_numpy(array).to(torch.float32 if name in float32 else torch_dtype)
        for name, array in _weights(spec, seed)
    }
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
    """Every tensor of the family's checkpoint, float32. Each has a stream of its own (seed, its position)."""
    for index, (name, shape, weight) in enumerate(hf_tensors(spec)):
        random = np.random.Generator(np.random.PCG64([seed, index]))
        yield name, _initial(weight.initial, shape, random).astype(np.float32)
    for name, shape in beside(spec).items():
        yield name, np.zeros(shape, np.float32)  # nothing is computed with them


def _initial(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if kind == "matrix":
        return random.standard_normal(shape) * INIT_STD
    if kind == "decay":  # A_log of a gated delta net: decay rates from 1 to 16, evenly spread
        return np.log(random.uniform(1, 16, shape))
    return np.full(shape, {"one": 1.0, "zero": 0.0}[kind])


def _config(spec: ModelSpec, dtype: str) -> dict:
    own: dict[str, object] = {
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "initializer_range": INIT_STD,
    }
    own["torch_dtype"] = dtype
    config = hf_config(spec)
    if "text_config" in config:
        config["text_config"] |= own
    return config | own


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
