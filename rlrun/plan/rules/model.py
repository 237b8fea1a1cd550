"""The model: is it there, is it the one that was expected, and does the run fit into it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from rlrun.config.sections.model import ArchitectureConfig
from rlrun.config.shipped import shipped
from rlrun.errors import Problem, RlrunError
from rlrun.families import fields_of
from rlrun.plan.context import Context
from rlrun.plan.decide.model import no_gdn_kernels
from rlrun.plan.model_spec import read_architecture
from rlrun.plan.placement import divisors, one_of
from rlrun.plan.weight_files import has_weights, missing_shards, only_described, read_weight_files
from rlrun.plan.weight_names import absent_parts, account, block_size, problems

FLASHQLA_HEAD = 128
"""Columns of the key and value heads that FlashQLA has kernels for."""

SPECIAL_TOKENS = 3
"""The tokenizer of a random model has <|endoftext|>, <|im_start|>, <|im_end|> and then the alphabet."""


def source(c: Context) -> Iterator[Problem]:
    """`init` decides which of path and alphabet is needed; the other one would do nothing."""
    m = c.config.model
    random = m.init == "random"
    needed, other = ("model.alphabet", "model.path") if random else ("model.path", "model.alphabet")
    if not c.value(needed):
        value = '"0123456789"' if random else "the folder of a checkpoint or a Hub id (org/name)"
        yield c.problem(
            "missing-value", f"init {m.init} needs {needed}", needed, "model.init", hint=f"set {needed} to {value}"
        )
    if c.value(other) is not None:
        hint = f"set {other} to null"
        yield c.problem("inactive-key", f"init {m.init} does not use {other}", other, "model.init", hint=hint)


def alphabet(c: Context) -> Iterator[Problem]:
    m = c.config.model
    if m.init != "random" or not m.alphabet:
        return
    repeated = sorted({character for character in m.alphabet if m.alphabet.count(character) > 1})
    if repeated:
        summary = f"the alphabet has {', '.join(map(repr, repeated))} more than once"
        yield c.problem("alphabet-repeats", summary, "model.alphabet", hint="write every character once")
    need = SPECIAL_TOKENS + len(set(m.alphabet))
    if m.architecture.vocab_size != need:
        summary = f"{len(set(m.alphabet))} characters and {SPECIAL_TOKENS} special tokens make a vocabulary of {need}"
        keys = ("model.architecture.vocab_size", "model.alphabet")
        yield c.problem("vocab-mismatch", summary, *keys, hint=f"set model.architecture.vocab_size to {need}")


def readable(c: Context) -> Iterator[Problem]:
    """model-not-found and model-unsupported of config.json, with the key that names the folder."""
    if c.model_dir is None:
        return
    try:
        read_architecture(c.model_dir, c.config.model.family)
    except RlrunError as e:
        for p in e.problems:
            yield c.problem(p.code, p.summary, "model.path", hint=p.hint or "")
        return
    if not only_described(Path(c.model_dir)):  # a limit of what can be run, plan/limits.py
        yield from incomplete(c, Path(c.model_dir), "model.path")


def incomplete(c: Context, folder: Path, key: str) -> Iterator[Problem]:
    """Weights and tokenizer beside a good config.json."""
    missing = missing_shards(folder) if has_weights(folder) else ["*.safetensors"]
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        missing.append("tokenizer.json")
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        summary = f"{folder} lacks {', '.join(missing[:5])}{more}"
        yield c.problem("model-incomplete", summary, key, hint="download the whole checkpoint into that folder")


def weights(c: Context) -> Iterator[Problem]:
    """Are the weights whole, and are they those of the architecture? Read from the files' headers."""
    if c.model_dir is None or not has_weights(Path(c.model_dir)):
        return
    path, spec = Path(c.model_dir), c.spec
    folder, files = os.path.basename(c.model_dir), read_weight_files(path)
    again = "download the whole checkpoint into that folder again"
    if files.faults:
        more = f"; and {len(files.faults) - 3} more" if len(files.faults) > 3 else ""
        summary = f"{folder} is damaged: {'; '.join(files.faults[:3])}{more}"
        yield c.problem("checkpoint-incomplete", summary, "model.path", hint=again)
    if files.faults or missing_shards(path) or not files.tensors:
        return
    found = account(files.tensors, spec, block_size(path))
    absent = absent_parts(found, spec)
    if absent:
        summary = f"the weights in {folder} have no {', '.join(absent)}"
        yield c.problem("checkpoint-incomplete", summary, "model.path", hint=again)
        return
    hint = f"{again}: config.json and the weights are of different models"
    for p in problems(found, f"{folder}", spec, hint):
        yield c.problem(p.code, p.summary, "model.path", "model.family", hint=p.hint or hint)


def family_fields(c: Context) -> Iterator[Problem]:
    """Fields that the family needs and nobody gave, and fields that it does not have."""
    family, has = c.config.model.family, fields_of(c.config.model.family)
    for name in ArchitectureConfig.model_fields:
        key = f"model.architecture.{name}"
        if name in has and c.value(key) is None and c.model_dir is None:
            hint = f"set {key} as in the model's config.json, or choose model=..."
            yield c.problem("missing-value", f"family {family} needs {name}", key, "model.family", hint=hint)
        elif name not in has and c.value(key) is not None:
            summary = f"family {family} has no {name}"
            yield c.problem("inactive-key", summary, key, "model.family", hint=f"set {key} to null")


def architecture(c: Context) -> Iterator[Problem]:
    """What was written under model.architecture against config.json; only keys that somebody wrote count."""
    if c.model_dir is None:
        return
    found, expected = c.found, c.expected
    written = [k for k in found if f"model.architecture.{k}" in c.origins]
    differ = [k for k in written if not _same(found[k], expected[k])]
    if differ:
        said = ", ".join(f"{k} {found[k]} (not {expected[k]})" for k in differ)
        hint = (
            "set " + ", ".join(f"model.architecture.{k}={_word(found[k])}" for k in differ) + ", or another model.path"
        )
        keys = ["model.path", *(f"model.architecture.{k}" for k in differ)]
        yield c.problem(
            "architecture-mismatch", f"config.json in {os.path.basename(c.model_dir)} has {said}", *keys, hint=hint
        )


def shipped_architecture(c: Context) -> Iterator[Problem]:
    """A model of the Hub whose shape is shipped: another shape is another model, which its weights would not fit.
    Looked at only when somebody wrote over the shipped values."""
    path, prefix = c.config.model.path, "model.architecture"
    written = [k for k in fields_of(c.config.model.family) if f"{prefix}.{k}" in c.origins]
    elsewhere = [k for k in written if "conf/model/" not in c.origins.of(f"{prefix}.{k}").replace(os.sep, "/")]
    if path is None or c.model_dir is not None or c.config.model.init == "random" or not elsewhere:
        return
    known = shipped_shape(path)
    differ = [k for k in elsewhere if known is not None and k in SHAPE and not _same(known.get(k), c.expected[k])]
    if known is not None and differ:
        said = ", ".join(f"{k} {known.get(k)} (not {c.expected[k]})" for k in differ)
        hint = "set " + ", ".join(f"{prefix}.{k}={_word(known.get(k))}" for k in differ) + ", or another model.path"
        keys = ["model.path", *(f"{prefix}.{k}" for k in differ)]
        yield c.problem("architecture-mismatch", f"{path} has {said}", *keys, hint=hint)


SHAPE = frozenset(ArchitectureConfig.model_fields) - {"max_position_embeddings", "rope_theta"}
"""Fields that decide what tensors there are and what they compute; the others are changed to extend contexts too."""


def shipped_shape(path: str) -> dict[str, object] | None:
    """`architecture` of the shipped model of a Hub id."""
    for file in sorted((shipped("conf") / "model").glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        if f"path: {path}\n" in text:
            return dict(yaml.safe_load(text)["architecture"])
    return None


def _same(a: object, b: object) -> bool:
    if isinstance(a, float | int) and isinstance(b, float | int) and not isinstance(a, bool):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def heads(c: Context) -> Iterator[Problem]:
    """Grouped-query attention and the rotary embedding, which turns pairs of a head's columns."""
    spec, prefix = c.spec, "model.architecture"
    if spec.num_heads % spec.num_kv_heads:
        summary = f"{spec.num_heads} query heads cannot share {spec.num_kv_heads} key/value heads equally"
        keys = (f"{prefix}.num_key_value_heads", f"{prefix}.num_attention_heads")
        hint = f"set {prefix}.num_key_value_heads to {one_of(divisors(spec.num_heads))}"
        yield c.problem("heads-indivisible", summary, *keys, hint=hint)
    if spec.head_dim % 2:
        summary = f"the rotary embedding turns pairs of columns, and a head has {spec.head_dim}"
        hint = f"set {prefix}.head_dim to {spec.head_dim + 1}"
        yield c.problem("heads-indivisible", summary, f"{prefix}.head_dim", hint=hint)


def delta_net(c: Context) -> Iterator[Problem]:
    """Kernels of the gated delta net: is there one, and can they compute it here."""
    key, wanted, linear = "model.gdn_backend", c.config.model.gdn_backend, c.spec.linear_attention
    if linear is None:
        if c.changed(key):
            summary = f"family {c.spec.family} has no gated delta net"
            yield c.problem("inactive-key", summary, key, "model.family", hint=f"set {key} to auto")
        return
    if wanted not in ("fla", "flashqla"):
        return
    because = no_gdn_kernels(c.config)
    if because is not None:
        summary = f"the kernels of {wanted} need a GPU" + (" and bfloat16" if because == "model.dtype" else "")
        yield c.problem("gdn-backend", summary, key, because, hint=f"set {key} to auto")
    if wanted == "flashqla" and (linear.key_dim, linear.value_dim) != (FLASHQLA_HEAD, FLASHQLA_HEAD):
        summary = f"flashqla computes heads of {FLASHQLA_HEAD} columns, and these have {linear.key_dim} (keys) and "
        summary += f"{linear.value_dim} (values)"
        keys = ("model.architecture.linear_key_head_dim", "model.architecture.linear_value_head_dim")
        yield c.problem("gdn-backend", summary, key, *keys, hint=f"set {key} to auto")


def sparse_attention(c: Context) -> Iterator[Problem]:
    """The trainer computes dense attention, which is what sparse attention is as long as it selects every key."""
    r, indexer = c.config.rollout, c.spec.indexer
    total = r.max_prompt_tokens + r.max_response_tokens
    if indexer is not None and total > indexer.top_k:
        left = indexer.top_k - r.max_prompt_tokens
        hint = f"set rollout.max_response_tokens to {left} or less"
        if left < 1:
            half = indexer.top_k // 2
            hint = f"set rollout.max_prompt_tokens to {half} and rollout.max_response_tokens to {half}"
        summary = (
            f"engines attend to {indexer.top_k} selected keys and the trainer to all, which is the same up to "
            f"{indexer.top_k} tokens only, and samples have up to {total}"
        )
        keys = ("rollout.max_prompt_tokens", "rollout.max_response_tokens", "model.architecture.index_topk")
        yield c.problem("sparse-attention-length", summary, *keys, hint=hint)


def context_length(c: Context) -> Iterator[Problem]:
    r, limit = c.config.rollout, c.spec.max_position_embeddings
    total = r.max_prompt_tokens + r.max_response_tokens
    if total > limit:
        keys = ("rollout.max_prompt_tokens", "rollout.max_response_tokens")
        left = limit - r.max_prompt_tokens
        hint = f"set rollout.max_response_tokens to {left} or less" if left > 0 else f"set both to {limit // 2}"
        summary = f"prompt and response of up to {total} tokens are longer than the model's {limit} positions"
        yield c.problem("context-too-long", summary, *keys, hint=hint)


RULES = (
    source,
    alphabet,
    readable,
    weights,
    family_fields,
    architecture,
    shipped_architecture,
    heads,
    delta_net,
    sparse_attention,
    context_length,
)
