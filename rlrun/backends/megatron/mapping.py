"""Hugging Face tensors <-> this rank's Megatron parameters.

A family (`qwen3.py`) lists its `Weight`s; a `Weight` says which HF tensors make up one Megatron parameter and how
tensor parallelism cuts it. A pipeline stage owns a run of layers.
"""

from __future__ import annotations

import bisect
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from torch import Tensor

from rlrun.plan.parameters import stage_sizes
from rlrun.plan.types import ModelSpec

Shape = tuple[int, ...]


class Split(ABC):
    """How full HF tensors become one parameter on each of `tp` ranks, and back."""

    @abstractmethod
    def shard(self, tensors: Sequence[Tensor], rank: int, tp: int) -> Tensor:
        """The parameter of tensor-parallel rank `rank`."""

    @abstractmethod
    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        """The full HF tensors (of these shapes) from the parameters of all ranks, in rank order."""


class Replicated(Split):
    def shard(self, tensors: Sequence[Tensor], rank: int, tp: int) -> Tensor:
        return tensors[0]

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [shards[0]]


@dataclass(frozen=True)
class Columns(Split):
    """Cut along dim 0 (output features, vocabulary); `padded` fills up with zero rows to a multiple of tp."""

    padded: bool = False

    def shard(self, tensors: Sequence[Tensor], rank: int, tp: int) -> Tensor:
        (tensor,) = tensors
        missing = -len(tensor) % tp
        if missing:
            assert self.padded, f"{len(tensor)} rows do not divide by tp {tp}"
            tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
        return tensor.chunk(tp)[rank]

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [torch.cat(list(shards))[: shapes[0][0]]]


class Rows(Split):
    """Cut along dim 1 (input features)."""

    def shard(self, tensors: Sequence[Tensor], rank: int, tp: int) -> Tensor:
        return tensors[0].chunk(tp, dim=1)[rank]

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [torch.cat(list(shards), dim=1)]


class GateUp(Split):
    """gate and up stacked; each rank holds its slice of gate above its slice of up."""

    def shard(self, tensors: Sequence[Tensor], rank: int, tp: int) -> Tensor:
        return torch.cat([tensor.chunk(tp)[rank] for tensor in tensors])

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [torch.cat(part) for part in zip(*(shard.chunk(2) for shard in shards), strict=True)]


@dataclass(frozen=True)
class Qkv(Split):
    """q, k, v interleaved by key/value group: [q ... q k v] for each group; each rank holds a run of groups."""

    num_groups: int
    head_dim: int

    def shard(self, tensors: Sequence[Tensor], rank: int, tp: int) -> Tensor:
        width = tensors[0].shape[1]
        by_group = torch.cat([tensor.view(self.num_groups, -1, width) for tensor in tensors], dim=1)
        return by_group.chunk(tp)[rank].reshape(-1, width)

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        width = shapes[0][1]
        by_group = torch.cat(list(shards)).view(self.num_groups, -1, width)
        sizes = [rows // self.num_groups for rows, _ in shapes]
        return [part.reshape(-1, width) for part in by_group.split(sizes, dim=1)]


@dataclass(frozen=True)
class Weight:
    """One Megatron parameter (`name` has the global layer number) and the HF tensors it is made of, with shapes.
    `place` is the layer's number, or "first" / "last" for the pipeline stage of the embedding / the head."""

    name: str
    hf: Mapping[str, Shape]
    split: Split
    place: int | str

    def stage(self, sizes: Sequence[int]) -> int:
        """The stage it is on, of stages with so many layers."""
        if isinstance(self.place, int):
            return bisect.bisect_right(list(itertools.accumulate(sizes)), self.place)
        return 0 if self.place == "first" else len(sizes) - 1


def weights_of(spec: ModelSpec) -> list[Weight]:
    from rlrun.backends.megatron import qwen3

    return list({"qwen3": qwen3.weights}[spec.family](spec))


def hf_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Name and shape of every tensor in the HF checkpoint, in its order."""
    return {name: shape for weight in weights_of(spec) for name, shape in weight.hf.items()}


def expected_names(spec: ModelSpec) -> list[str]:
    """The names `export_weights` yields, in order (tied models have no lm_head)."""
    return list(hf_shapes(spec))


def unwrap(model: Any) -> Any:
    """The model inside DDP and the like."""
    while hasattr(model, "module"):
        model = model.module
    return model


def global_parameters(model: torch.nn.Module) -> dict[str, Tensor]:
    """This rank's parameters under their global names: without wrappers, layers counted over all pipeline stages."""
    model = unwrap(model)
    numbers = [layer.layer_number - 1 for layer in model.decoder.layers]
    return {
        re.sub(r"^decoder\.layers\.(\d+)", lambda m: f"decoder.layers.{numbers[int(m[1])]}", name): parameter
        for name, parameter in model.named_parameters()
    }


@torch.no_grad()
def export_weights(model: torch.nn.Module, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """Full HF tensors on global rank 0, one after the other in `expected_names` order, each a copy on the device.

    Collective: every rank must iterate it to the end; ranks other than 0 yield nothing. Tensor-parallel shards are
    gathered on the first rank of the owning stage, which sends them to rank 0. Data-parallel replicas are equal, so
    only the first takes part.
    """
    if ps.get_data_parallel_rank(with_context_parallel=True) != 0:
        return
    parameters = global_parameters(model)
    pp, my_stage, my_tp = ps.get_pipeline_model_parallel_world_size(), _pp_rank(), ps.get_tensor_model_parallel_rank()
    config = unwrap(model).config
    first, last = config.num_layers_in_first_pipeline_stage, config.num_layers_in_last_pipeline_stage
    sizes = stage_sizes(spec.num_layers, pp, first, last)
    device, dtype = next(iter(parameters.values())).device, next(iter(parameters.values())).dtype
    for weight in weights_of(spec):
        stage = weight.stage(sizes)
        tensors: list[Tensor] = []
        if my_stage == stage:
            shards = _gather_tp(parameters[weight.name].detach())
            if my_tp == 0:
                tensors = [t.clone(memory_format=torch.contiguous_format) for t in _merge(weight, shards)]
        if stage != 0 and my_tp == 0:
            group = ps.get_pipeline_model_parallel_group()
            if my_stage == stage:
                for tensor in tensors:
                    dist.send(tensor, group=group, group_dst=0)
            elif my_stage == 0:
                tensors = [torch.empty(shape, dtype=dtype, device=device) for shape in weight.hf.values()]
                for tensor in tensors:
                    dist.recv(tensor, group=group, group_src=stage)
        if my_stage == 0 and my_tp == 0:
            yield from zip(weight.hf, tensors, strict=True)


def _pp_rank() -> int:
    return ps.get_pipeline_model_parallel_rank()


def _merge(weight: Weight, shards: list[Tensor]) -> list[Tensor]:
    tensors = weight.split.merge(shards, list(weight.hf.values()))
    shapes = [tuple(t.shape) for t in tensors]
    assert shapes == list(weight.hf.values()), f"{weight.name}: {shapes}"
    return tensors


def _gather_tp(parameter: Tensor) -> list[Tensor]:
    """All ranks' shards on the first rank of the tensor-parallel group, an empty list on the others."""
    group = ps.get_tensor_model_parallel_group()
    if group.size() == 1:
        return [parameter]
    shards = [torch.empty_like(parameter) for _ in range(group.size())] if group.rank() == 0 else None
    dist.gather(parameter.contiguous(), shards, group=group, group_dst=0)
    return shards or []
