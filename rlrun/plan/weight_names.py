"""Where the tensors of a family lie in the files of one checkpoint, and what is wrong with it, from the files' headers.

A family names its tensors in one way (`rlrun.families`); files store them in several. Experts are stored one by one, or
all of a layer packed into `experts.gate_up_proj` [E, 2I, h] and `experts.down_proj` [E, h, I]; a text model is stored
under `model.` or, in a vision-language checkpoint, under `model.language_model.`; a matrix may be FP8 with a scale for
each block (`NAME_scale_inv`); and files hold tensors that nobody here trains. No torch: plans read this too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.errors import Problem
from rlrun.families import is_untrained, weights_of
from rlrun.families.splits import Shape, Weight
from rlrun.plan.model_spec import is_block_fp8, quantization
from rlrun.plan.parts.model import ModelSpec
from rlrun.plan.weight_files import Stored

FLOATS = ("F64", "F32", "F16", "BF16")
FP8 = "F8_E4M3"
SCALE = "_scale_inv"
BLOCK = (128, 128)
"""Rows and columns that share a scale, where config.json does not say."""
PREFIXES = ("model.language_model.", "model.")
HEAD = "lm_head.weight"
LAYER = re.compile(r"\blayers\.(\d+)\.")
USELESS = re.compile(r"\.rotary_emb\.inv_freq$")
"""Buffers that old releases of transformers saved; computed from config.json."""


@dataclass(frozen=True)
class Source:
    """Where a tensor lies: in the stored tensor `name`, or in rows `rows` of expert `expert` of it. `scale` is the
    stored tensor with its FP8 scales."""

    name: str
    expert: int | None = None
    rows: tuple[int, int] | None = None
    scale: str | None = None


@dataclass(frozen=True)
class Account:
    """`sources`: of the family's tensors that are there. `untrained`: stored tensors that the family knows and has no
    use for, their scales too. `tied_head`: the stored copy of a tied output layer. The rest is what is wrong: names
    that are not there; stored tensors that the family does not know; (name, shape, expected shape); (name, why it
    cannot be read)."""

    sources: Mapping[str, Source]
    untrained: tuple[str, ...]
    tied_head: str | None
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[tuple[str, Shape, Shape], ...]
    unreadable: tuple[tuple[str, str], ...]


def account(
    stored: Mapping[str, Stored],
    spec: ModelSpec,
    block: tuple[int, int] = BLOCK,
    wanted: Iterable[Weight] | None = None,
) -> Account:
    """Every stored tensor and every tensor of the family (or of the weights `wanted`), each with its place."""
    sources: dict[str, Source] = {}
    used: set[str] = set()
    missing: list[str] = []
    misshapen, unreadable = {}, {}
    for weight in weights_of(spec) if wanted is None else wanted:
        for position, (name, shape) in enumerate(weight.hf.items()):
            source = _find(name, stored) or _packed(weight, position, name, shape, stored)
            if source is None:
                missing.append(name)
                continue
            sources[name], tensor = source, stored[source.name]
            if source.name not in used:
                used.add(source.name)
                expected = shape if source.expert is None else packed_shape(weight, shape, spec)
                if tensor.shape != expected:
                    misshapen[source.name] = (tensor.shape, expected)
                elif why := _unreadable(source, stored, block):
                    unreadable[source.name] = why
    used |= {source.scale for source in sources.values() if source.scale is not None}
    rest = [name for name in stored if name not in used]
    aside = {name for name in rest if USELESS.search(name) or any(is_untrained(spec, s) for s in spellings(name))}
    aside |= {name for name in rest if name.endswith(SCALE) and name.removesuffix(SCALE) in aside}
    tied = HEAD if spec.tied_embeddings and HEAD in rest else None
    unexpected = [name for name in rest if name not in aside and name != tied]
    return Account(
        sources,
        tuple(name for name in rest if name in aside),
        tied,
        tuple(missing),
        tuple(sorted(unexpected)),
        tuple((name, *shapes) for name, shapes in misshapen.items()),
        tuple(unreadable.items()),
    )


def spellings(name: str) -> tuple[str, ...]:
    """The name as it is, then with the other prefix."""
    for prefix, other in (PREFIXES, PREFIXES[::-1]):
        if name.startswith(prefix):
            return name, other + name.removeprefix(prefix)
    return (name,)


def _scale(name: str, stored: Mapping[str, Stored]) -> str | None:
    return name + SCALE if stored[name].dtype == FP8 and name + SCALE in stored else None


def _find(name: str, stored: Mapping[str, Stored]) -> Source | None:
    found = next((spelling for spelling in spellings(name) if spelling in stored), None)
    return None if found is None else Source(found, scale=_scale(found, stored))


def packed_name(weight: Weight, name: str) -> str:
    """Of the tensor that holds this one of every expert. Gate and up are the first and second tensor of one weight."""
    base, _ = name.split(f"experts.{weight.expert}.")
    return f"{base}experts.{'gate_up_proj' if len(weight.hf) == 2 else 'down_proj'}"


def packed_shape(weight: Weight, shape: Shape, spec: ModelSpec) -> Shape:
    assert spec.moe is not None
    return (spec.moe.num_experts, len(weight.hf) * shape[0], *shape[1:])


def _packed(weight: Weight, position: int, name: str, shape: Shape, stored: Mapping[str, Stored]) -> Source | None:
    if weight.expert is None:
        return None
    found = next((s for s in spellings(packed_name(weight, name)) if s in stored), None)
    if found is None:
        return None
    rows = (position * shape[0], (position + 1) * shape[0]) if len(weight.hf) > 1 else None
    return Source(found, weight.expert, rows, _scale(found, stored))


def _unreadable(source: Source, stored: Mapping[str, Stored], block: tuple[int, int]) -> str | None:
    tensor = stored[source.name]
    if tensor.dtype in FLOATS:
        return None
    if tensor.dtype != FP8:
        return f"is {tensor.dtype}, which is not read"
    if source.scale is None:
        return f"is FP8 without {source.name}{SCALE}"
    *experts, rows, columns = tensor.shape if len(tensor.shape) > 1 else (*tensor.shape, 1)
    expected = (*experts, math.ceil(rows / block[0]), math.ceil(columns / block[1]))
    if stored[source.scale].shape != expected:
        found, size = list(stored[source.scale].shape), "x".join(map(str, block))
        return f"has scales {found}, and blocks of {size} make {list(expected)}"
    return None


def block_size(folder: Path) -> tuple[int, int]:
    """Of FP8 scales, by `quantization_config.weight_block_size` of config.json."""
    found = _quantization(folder)
    rows, columns = found.get("weight_block_size", BLOCK) if is_block_fp8(found) else BLOCK
    return rows, columns


def is_fp8(folder: Path) -> bool:
    return is_block_fp8(_quantization(folder))


def _quantization(folder: Path) -> Mapping[str, Any]:
    try:
        return quantization(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError):
        return {}


def problems(found: Account, where: str, spec: ModelSpec, hint: str) -> list[Problem]:
    """Everything that is wrong, by kind."""
    told = []
    if found.missing:
        told.append(Problem("weights-missing", f"{where} lacks {some(found.missing)}", hint=hint))
    if found.unexpected:
        summary = f"{where} has {some(found.unexpected)}, which {spec.family} has not"
        told.append(Problem("weights-unexpected", summary, hint=hint))
    for name, shape, expected in found.misshapen[:5]:
        told.append(
            Problem("weights-shape", f"{name} in {where} is {list(shape)}, expected {list(expected)}", hint=hint)
        )
    if len(found.misshapen) > 5:
        told.append(
            Problem("weights-shape", f"{len(found.misshapen) - 5} more tensors in {where} do not fit", hint=hint)
        )
    if found.unreadable:
        name, why = found.unreadable[0]
        more = f", and {len(found.unreadable) - 1} more like it" if len(found.unreadable) > 1 else ""
        other = "use the checkpoint in bfloat16, or in FP8 with a scale for each block"
        told.append(Problem("weights-quantised", f"{name} in {where} {why}{more}", hint=other))
    return told


def some(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def absent_parts(found: Account, spec: ModelSpec) -> list[str]:
    """Parts of the model of which there is no tensor at all."""
    lacking = [name.removeprefix("model.language_model.").removeprefix("model.") for name in found.missing]
    absent = [part for part in ("embed_tokens.weight", "norm.weight", HEAD) if part in lacking]
    there = {int(layer.group(1)) for name in found.sources if (layer := LAYER.search(name))}
    layers = [layer for layer in range(spec.num_layers) if layer not in there]
    if layers:
        absent.append(f"layer{'s' if len(layers) > 1 else ''} {_ranges(layers)}")
    return absent


def _ranges(numbers: list[int]) -> str:
    """0, 1, 2, 5 -> `0-2, 5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
