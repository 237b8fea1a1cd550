"""The three conversions. Each checks everything before it writes, and leaves a whole folder or none."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlrun.backends.megatron import _quiet  # noqa: F401
from rlrun.backends.megatron.hf_reader import HfWeights, check, fill
from rlrun.backends.megatron.hf_writer import Style, copy_side_files, left_over, write_hf
from rlrun.backends.megatron.mapping import export_weights, sources
from rlrun.backends.megatron.safetensors_file import TYPES, SafetensorsFile
from rlrun.convert import megatron, verify
from rlrun.convert.request import Request, refuse_memory, spec_of
from rlrun.convert.sources import RECORD, SIDE, WEIGHTS, resolve
from rlrun.data.folders import whole
from rlrun.errors import Problem, RlrunError, RunFailed
from rlrun.families import FAMILIES, weights_of
from rlrun.families.parts import EMBEDDING
from rlrun.plan.types import ModelSpec
from rlrun.plan.weight_files import has_weights
from rlrun.plan.weight_names import some
from rlrun.runtime.progress import duration, shown

HINT = "config.json and the weights are of different models, or the files are not whole"
LEFT_OVER = "untrained.safetensors"


def convert(request: Request) -> list[str]:
    """Carries it out and returns what to say. RlrunError for what is wrong with the input, before anything is written;
    RunFailed when writing or verifying fails, after which nothing is there."""
    began = time.monotonic()
    done = {"hf-to-megatron": hf_to_megatron, "megatron-to-hf": megatron_to_hf, "hf-to-hf": hf_to_hf}[request.kind]
    try:
        lines = done(request)
    except OSError as error:
        hint = "make room on its disk, or choose another folder"
        raise RunFailed("convert", f"writing {request.target} failed: {error}", hint) from error
    return [f"wrote {shown(str(request.target))} in {duration(time.monotonic() - began)}", *lines]


def hf_to_megatron(request: Request) -> list[str]:
    spec = spec_of(request.source)
    with HfWeights(str(request.source), spec) as weights:
        check(weights, HINT)
        dtype = _dtype(weights, request)
        refuse_memory(spec, dtype.itemsize, request.verify)
        with megatron.model_alone(spec, dtype) as model, whole(request.target) as folder:
            fill(model, weights, sources(model, spec))
            (folder / WEIGHTS).mkdir()
            megatron.save(model, folder / WEIGHTS)
            _write_side(weights, request.source, folder / SIDE, dtype)
            record = {"style": asdict(Style.of(weights)), "source": str(request.source), "dtype": _name(dtype)}
            (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            told = []
            if request.verify:
                _forget(model)
                megatron.load(model, folder / WEIGHTS)
                told = verify.same_tensors(export_weights(model, spec), weights)
                told += verify.same_logits(model, spec, request.source)
        return [_said(spec, dtype), *_narrowed(weights, dtype, request), *told]


def megatron_to_hf(request: Request) -> list[str]:
    source = resolve(request.source, request.origin)
    spec = spec_of(source.origin)
    tensors = megatron.stored(source.weights)
    dtype = megatron.type_of(tensors, source.weights)
    filler = request.fill_from or source.origin
    if request.fill_from is not None and has_weights(filler):
        with HfWeights(str(filler), spec) as weights:
            check(weights, HINT)
    refuse_memory(spec, dtype.itemsize, request.verify)
    style = Style(**source.record["style"]) if source.record is not None else None  # type: ignore[arg-type]
    told: list[str] = []
    with megatron.model_alone(spec, dtype) as model:
        megatron.check(model, tensors, source.weights, source.origin)
        megatron.load(model, source.weights)

        def compare(folder: Path) -> None:
            with HfWeights(str(folder), spec) as written:
                check(written, HINT)
                told.extend(verify.same_tensors(export_weights(model, spec), written))
            told.extend(verify.same_logits(model, spec, folder))

        write_hf(
            export_weights(model, spec),
            spec,
            dtype,
            str(source.origin),
            str(request.target),
            style=style,
            fill_from=str(filler),
            before_it_appears=compare if request.verify else None,
        )
    return [_said(spec, dtype), *_beside(filler, spec), *told]


def _beside(filler: Path, spec: ModelSpec) -> list[str]:
    """Where the tensors that are not trained came from; and when there were none, that a release may have some."""
    if not FAMILIES[spec.family].untrained:
        return []
    if has_weights(filler):
        with HfWeights(str(filler), spec) as weights:
            count = len(weights.found.untrained)
        if count:
            return [f"{count} tensors that are not trained are from {shown(str(filler))}"]
    kinds = "a vision tower or layers for multi-token prediction"
    return [f"trained tensors alone: if the release has {kinds}, add --fill-missing-from DIR"]


def hf_to_hf(request: Request) -> list[str]:
    """The same checkpoint with other bytes: FP8 undone, another dtype. Tensor by tensor; Megatron takes no part."""
    spec = spec_of(request.source)
    with HfWeights(str(request.source), spec) as weights:
        check(weights, HINT)
        dtype = _dtype(weights, request)

        def compare(folder: Path) -> None:
            with HfWeights(str(folder), spec) as written:
                check(written, HINT)
                told.extend(verify.same_tensors(_named(written, spec), weights))

        told: list[str] = []
        write_hf(
            _named(weights, spec),
            spec,
            dtype,
            str(request.source),
            str(request.target),
            before_it_appears=compare if request.verify else None,
        )
        return [_said(spec, dtype), *_narrowed(weights, dtype, request), *told]


def _named(weights: HfWeights, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    for weight in weights_of(spec):
        for name in weight.hf:
            yield name, weights.tensor(name)


def _dtype(weights: HfWeights, request: Request) -> torch.dtype:
    """That of the embedding, which no release quantises, unless another one is asked for."""
    if request.dtype is not None:
        return getattr(torch, request.dtype)
    name = next(name for w in weights_of(weights.spec) if w.name == EMBEDDING for name in w.hf)
    found = weights.stored[weights.found.sources[name].name].dtype
    if found not in ("BF16", "F32"):
        summary = f"the weights in {request.source} are {found}, which a model is not trained in here"
        raise RlrunError(Problem("weights-other-type", summary, hint="add dtype=bfloat16, or dtype=float32"))
    return TYPES[found]


def _narrowed(weights: HfWeights, dtype: torch.dtype, request: Request) -> list[str]:
    """Which tensors are stored in a wider type than the model has."""
    if request.dtype is not None or dtype == torch.float32:
        return []
    kept = {name for w in weights_of(weights.spec) if w.float32 for name in w.hf}
    wide = [n for n, s in weights.found.sources.items() if n not in kept and weights.stored[s.name].dtype == "F32"]
    return [f"{len(wide)} tensors are stored in float32 and become {_name(dtype)}: {some(wide)}"] if wide else []


def _write_side(weights: HfWeights, source: Path, folder: Path, dtype: torch.dtype) -> None:
    """What the way back needs beside the weights."""
    folder.mkdir()
    rest = left_over(weights, dtype)
    if rest:
        with SafetensorsFile(folder / LEFT_OVER, rest) as file:
            for name in rest:
                file.write(name, weights.left_over(name))
    copy_side_files(source, folder, dtype)


def _forget(model: Any) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _said(spec: ModelSpec, dtype: torch.dtype) -> str:
    return f"{spec.family}, {spec.num_parameters:,} parameters, {_name(dtype)}"
