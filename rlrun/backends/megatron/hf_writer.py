"""Writing Hugging Face checkpoints: in the manner of the one that they come from, one tensor at a time.

Experts are packed, and names begin, as in the source; what the trainer does not hold (a vision tower, layers for
multi-token prediction, an indexer) is copied from there. The folder appears when it is complete.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlrun.backends.megatron.hf_reader import HfWeights
from rlrun.backends.megatron.safetensors_file import TYPES, SafetensorsFile, num_bytes
from rlrun.backends.megatron.slow import Slow
from rlrun.data.folders import whole
from rlrun.errors import RunFailed
from rlrun.families import FAMILIES, weights_of
from rlrun.families.parts import EMBEDDING
from rlrun.families.splits import Shape
from rlrun.plan.types import ModelSpec
from rlrun.plan.weight_files import INDEX, has_weights
from rlrun.plan.weight_names import FP8, HEAD, PREFIXES, SCALE, is_fp8, packed_name, packed_shape

SINGLE = "model.safetensors"
MAX_SHARD_BYTES = 4 * 10**9
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".distcp", ".index.json")
"""Ends of names of files that hold weights or say where they are."""

Tensors = dict[str, tuple[Shape, torch.dtype]]


@dataclass(frozen=True)
class Style:
    """How a checkpoint is stored: `packed` experts, `prefix` of the names of the text model, and whether a tied output
    layer is stored `twice`."""

    packed: bool
    prefix: str
    twice: bool = False

    @classmethod
    def of(cls, weights: HfWeights) -> Style:
        found = weights.found
        name = found.sources[next(n for n in found.sources if n.endswith("embed_tokens.weight"))].name
        packed = any(source.expert is not None for source in found.sources.values())
        return cls(packed, name.removesuffix("embed_tokens.weight"), found.tied_head is not None)

    @classmethod
    def usual(cls, spec: ModelSpec) -> Style:
        """That of released checkpoints."""
        embedding = next(name for w in weights_of(spec) if w.name == EMBEDDING for name in w.hf)
        return cls(FAMILIES[spec.family].packed_experts, embedding.removesuffix("embed_tokens.weight"))

    def name(self, name: str) -> str:
        """A name of the family (or of its packed experts) as this checkpoint spells it."""
        prefix = next((p for p in PREFIXES if name.startswith(p)), "")
        return self.prefix + name.removeprefix(prefix) if prefix else name


@dataclass(frozen=True)
class Layout:
    """`tensors`: to be stored, in order. `places`: HF tensor -> the stored tensors it goes into, and where there."""

    tensors: Tensors
    places: dict[str, list[tuple[str, int]]]

    @classmethod
    def of(cls, spec: ModelSpec, dtype: torch.dtype, style: Style) -> Layout:
        tensors: Tensors = {}
        places: dict[str, list[tuple[str, int]]] = {}
        for weight in weights_of(spec):
            kind = torch.float32 if weight.float32 else dtype
            for position, (name, shape) in enumerate(weight.hf.items()):
                if style.packed and weight.expert is not None:
                    target, full = style.name(packed_name(weight, name)), packed_shape(weight, shape, spec)
                    start = (weight.expert * len(weight.hf) + position) * math.prod(shape)
                else:
                    target, full, start = style.name(name), shape, 0
                tensors[target] = (full, kind)
                places[name] = [(target, start)]
                if style.twice and weight.name == EMBEDDING:
                    tensors[HEAD] = (shape, kind)
                    places[name].append((HEAD, 0))
        return cls(tensors, places)


def write_hf(
    named: Iterable[tuple[str, Tensor]],
    spec: ModelSpec,
    dtype: torch.dtype,
    source: str,
    target: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    style: Style | None = None,
    fill_from: str | None = None,
    replace: bool = False,
    before_it_appears: Callable[[Path], None] | None = None,
) -> None:
    """Writes the tensors `named`, each of the family once, as one safetensors file, or as shards with an index when
    they are larger than `max_shard_bytes` together; copies config.json (with this dtype), tokenizer and the like from
    `source`, and the tensors that are not trained from `fill_from`, by default `source`, if it has weights.

    Nothing is held but one tensor. `target` has to be empty unless it is to be replaced. `before_it_appears` is called
    with the complete folder under its temporary name. Raises RunFailed when the disk is full or the like; then nothing
    is there.
    """
    origin = fill_from or source
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(whole(Path(target), replace))
            filler = stack.enter_context(HfWeights(origin, spec)) if has_weights(Path(origin)) else None
            if style is None:
                whole_source = filler is not None and not filler.found.missing
                style = Style.of(filler) if filler is not None and whole_source else Style.usual(spec)
            layout = Layout.of(spec, dtype, style)
            rest = left_over(filler, dtype) if filler is not None else {}
            _write_shards(named, layout, filler, rest, folder, max_shard_bytes, target)
            copy_side_files(Path(source), folder, dtype)
            if before_it_appears is not None:
                before_it_appears(folder)
        except OSError as error:
            hint = "make room on its disk, or choose another folder"
            raise RunFailed("export", f"writing {target} failed: {error}", hint) from error


def left_over(weights: HfWeights, dtype: torch.dtype) -> Tensors:
    """The stored tensors that are not trained; what is FP8 becomes `dtype`."""
    kinds: Tensors = {}
    stored = weights.stored
    for name in weights.found.untrained:
        scaled = stored[name].dtype == FP8 and name + SCALE in stored
        if not (name.endswith(SCALE) and name.removesuffix(SCALE) in stored):
            kinds[name] = (stored[name].shape, dtype if scaled else TYPES[stored[name].dtype])
    return kinds


def _write_shards(
    named: Iterable[tuple[str, Tensor]],
    layout: Layout,
    filler: HfWeights | None,
    rest: Tensors,
    folder: Path,
    max_shard_bytes: int,
    target: str,
) -> None:
    tensors = layout.tensors | rest
    sizes = {name: num_bytes(*kind) for name, kind in tensors.items()}
    shards = plan_shards(sizes, max_shard_bytes)
    slow = Slow(f"writing {target}", sum(sizes.values()))
    weight_map: dict[str, str] = {}
    with ExitStack() as stack:
        files: dict[str, SafetensorsFile] = {}
        for number, names in enumerate(shards, start=1):
            file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
            opened = stack.enter_context(SafetensorsFile(folder / file, {name: tensors[name] for name in names}))
            files |= dict.fromkeys(names, opened)
            weight_map |= dict.fromkeys(names, file)
        for name, tensor in _each_once(named, layout.places):
            for place, start in layout.places[name]:
                files[place].write(place, tensor, start)
            slow.add(tensor.nbytes)
        for name in rest:
            assert filler is not None
            files[name].write(name, filler.left_over(name))
            slow.add(sizes[name])
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    slow.end()


def _each_once(named: Iterable[tuple[str, Tensor]], expected: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    left = set(expected)
    for name, tensor in named:
        assert name in left, f"{name} is not of this model, or comes twice"
        left.remove(name)
        yield name, tensor
    assert not left, f"{sorted(left)[:3]} did not come"


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, nbytes in sizes.items():
        if shards[-1] and size + nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    return shards


def copy_side_files(source: Path, target: Path, dtype: torch.dtype) -> None:
    """Everything beside the weights: config.json with this dtype and without the FP8 that has been undone, tokenizer,
    chat template, generation settings."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(WEIGHTS):
            shutil.copyfile(path, target / path.name)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    parts = [config, *(part for part in [config.get("text_config")] if isinstance(part, dict))]
    # transformers 5 writes `dtype`, earlier releases and most checkpoints `torch_dtype`.
    said = [(part, key) for part in parts for key in ("dtype", "torch_dtype") if key in part]
    for part, key in said or [(config, "torch_dtype")]:
        part[key] = str(dtype).removeprefix("torch.")
    if is_fp8(source):
        for part in parts:
            part.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
