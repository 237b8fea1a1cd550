"""A model in Megatron, alone in this process on the CPU, and its weights in Megatron's checkpoint format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rlrun.backends.megatron import (
    _quiet,  # noqa: F401  (first: it imports Megatron without its warnings)
    checkpoint,
    cpu,
    writer,
)
from rlrun.backends.megatron.mapping import unwrap
from rlrun.backends.megatron.model import build_model
from rlrun.errors import Problem, RlrunError, RunFailed
from rlrun.families.parts import EMBEDDING
from rlrun.plan.types import ModelSpec, TrainPlan
from rlrun.plan.weight_names import some

MODEL = ("embedding.", "decoder.", "output_layer.")
"""How the names of a model's weights begin; a run's checkpoint holds more."""
ALONE = TrainPlan(
    slots=(0,),
    tp=1,
    pp=1,
    cp=1,
    dp=1,
    backend="gloo",
    threads=1,
    batching="packed",
    max_tokens_per_gpu=None,
    micro_batch_size=None,
    recompute="none",
    sequence_parallel=False,
    distributed_optimizer=False,
    megatron=(("perform_initialization", False),),  # every weight is loaded
)


@contextmanager
def model_alone(spec: ModelSpec, dtype: torch.dtype) -> Iterator[Any]:
    """The whole model, its weights undefined; Megatron's process groups exist as long as the context."""
    assert not torch.cuda.is_available(), "a conversion belongs on the CPU: CUDA_VISIBLE_DEVICES has to be empty"
    cpu.install()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with cpu.shim(), torch.no_grad():
            parallel_state.initialize_model_parallel()
            yield build_model(spec, ALONE, dtype).eval()
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _state(model: torch.nn.Module) -> dict[str, Any]:
    """Under the names that a run's checkpoint gives them."""
    return {"model": unwrap(model).sharded_state_dict(metadata=dict(checkpoint.METADATA))}


def save(model: torch.nn.Module, folder: Path) -> None:
    """Into an existing, empty folder."""
    with _failing(f"writing Megatron's checkpoint to {folder.parent}"), writer.in_process():
        dist_checkpointing.save(_state(model), str(folder))


def load(model: torch.nn.Module, folder: Path) -> None:
    """The model's weights alone; what else the checkpoint holds is not read."""
    with _failing(f"reading Megatron's checkpoint in {folder}"):
        state = dist_checkpointing.load(_state(model), str(folder))
    unwrap(model).load_state_dict(state["model"])


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except (Exception, CheckpointException) as error:  # torch's CheckpointException is no Exception
        causes = [repr(cause[0]) for cause in (getattr(error, "failures", None) or {}).values()]
        hint = "check the folder and the free space on its disk"
        raise RunFailed("convert", f"{what} failed: {'; '.join(causes) or error}", hint) from error


def stored(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Shapes and types of the tensors in a checkpoint. RlrunError when it is none, or files are missing or cut."""
    hint = "give the folder that `rlrun convert hf-to-megatron` made, or a run's checkpoints/step_N"
    try:
        metadata = FileSystemReader(str(folder)).read_metadata()
    except Exception as error:  # pickle raises all kinds
        summary = f"{folder} is no Megatron checkpoint that can be read: {type(error).__name__}: {error}"
        raise RlrunError(Problem("megatron-unreadable", summary, hint=hint)) from error
    ends: dict[str, int] = {}
    for place in metadata.storage_data.values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    problems = []
    for file, end in sorted(ends.items()):
        path = folder / file
        size = os.path.getsize(path) if path.is_file() else None
        if size is None or size < end:
            why = "is missing" if size is None else f"is cut short: {size:,} of {end:,} bytes"
            again = "copy the checkpoint again, or use another one"
            problems.append(Problem("megatron-unreadable", f"{path} {why}", hint=again))
    if problems:
        raise RlrunError(problems)
    return {k: v for k, v in metadata.state_dict_metadata.items() if isinstance(v, TensorStorageMetadata)}


def type_of(tensors: dict[str, TensorStorageMetadata], folder: Path) -> torch.dtype:
    """Of the weights; those that are always float32 aside."""
    if EMBEDDING not in tensors:
        hint = "give a checkpoint that rlrun has written"
        raise RlrunError(Problem("megatron-unreadable", f"{folder} has no {EMBEDDING}", hint=hint))
    return tensors[EMBEDDING].properties.dtype


def check(model: torch.nn.Module, tensors: dict[str, TensorStorageMetadata], folder: Path, origin: Path) -> None:
    """RlrunError unless the checkpoint has the weights of the model, in their shapes, and no others."""
    state = _state(model)
    apply_factories(state)
    wanted = [value for value in nested_values(state) if isinstance(value, ShardedTensor)]
    known = {value.key for value in wanted}
    lacking, beyond = sorted(known - set(tensors)), sorted(k for k in set(tensors) - known if k.startswith(MODEL))
    wrong = {
        value.key: (tuple(tensors[value.key].size), tuple(value.global_shape))
        for value in wanted
        if value.key in tensors and not _fits(tuple(tensors[value.key].size), value)
    }
    hint = f"the checkpoint is of another model than {origin}/config.json: give its own with --origin"
    problems = []
    if lacking:
        problems.append(Problem("weights-missing", f"{folder} lacks {some(lacking)}", hint=hint))
    if beyond:
        summary = f"{folder} has {some(beyond)}, which the model has not"
        problems.append(Problem("weights-unexpected", summary, hint=hint))
    for key, (found, expected) in sorted(wrong.items())[:5]:
        summary = f"{key} in {folder} is {list(found)}, expected {list(expected)}"
        problems.append(Problem("weights-shape", summary, hint=hint))
    if problems:
        raise RlrunError(problems)


def _fits(found: tuple[int, ...], value: Any) -> bool:
    """A vocabulary may be padded for tensor parallelism, by less than a row for each rank."""
    expected = tuple(value.global_shape)
    if value.allow_shape_mismatch:
        return found[1:] == expected[1:] and 0 <= found[0] - expected[0] < 1024
    return found == expected
