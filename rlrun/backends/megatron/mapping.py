"""Hugging Face tensors <-> this rank's Megatron parameters and buffers, by the tables of `rlrun.families`.

A tensor is whole on no rank, or on many: tensor parallelism cuts it, a pipeline stage owns its layer, expert
parallelism its expert. `Grid` knows which ranks hold its pieces, and an export sends those straight to rank 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from torch import Tensor

from rlrun.families import hf_shapes, weights_of
from rlrun.families.parts import EMBEDDING, OUTPUT
from rlrun.families.splits import Weight
from rlrun.plan.parameters import stage_sizes, stage_starts
from rlrun.plan.types import ModelSpec


def expected_names(spec: ModelSpec) -> list[str]:
    """The names `export_weights` yields, in order (tied models have no lm_head)."""
    return list(hf_shapes(spec))


def unwrap(model: Any) -> Any:
    """The model inside DDP and the like."""
    while hasattr(model, "module"):
        model = model.module
    return model


def global_parameters(model: torch.nn.Module) -> dict[str, Tensor]:
    """This rank's parameters, and the routers' selection biases (buffers), under their global names: without wrappers,
    layers counted over all pipeline stages and experts over all expert-parallel ranks."""
    model = unwrap(model)
    numbers = [layer.layer_number - 1 for layer in model.decoder.layers]
    experts = getattr(model.config, "num_moe_experts", None) or 0
    first = ps.get_expert_model_parallel_rank() * (experts // ps.get_expert_model_parallel_world_size())
    biases = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith(".expert_bias"))

    def global_name(name: str) -> str:
        name = re.sub(r"^decoder\.layers\.(\d+)", lambda m: f"decoder.layers.{numbers[int(m[1])]}", name)
        return re.sub(r"\.local_experts\.(\d+)\.", lambda m: f".local_experts.{first + int(m[1])}.", name)

    return {global_name(name): tensor for name, tensor in (*model.named_parameters(), *biases)}


class Place(NamedTuple):
    """Where a rank stands, among the ranks of one replica of everything else and of the experts."""

    tp: int
    pp: int
    replica: int  # data and context parallel
    etp: int
    ep: int
    expert_replica: int


def _own_place() -> Place:
    experts = ps.get_expert_data_parallel_rank()
    return Place(
        ps.get_tensor_model_parallel_rank(),
        ps.get_pipeline_model_parallel_rank(),
        ps.get_data_parallel_rank(with_context_parallel=True),
        ps.get_expert_tensor_parallel_rank(),
        ps.get_expert_model_parallel_rank(),
        experts,
    )


def cut(weight: Weight) -> tuple[int, int]:
    """(rank, parts) of the dimension that cuts this weight, as this rank is placed."""
    if weight.expert is None:
        return ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size()
    return ps.get_expert_tensor_parallel_rank(), ps.get_expert_tensor_parallel_world_size()


def shard(weight: Weight, tensors: list[Tensor]) -> Tensor:
    """This rank's parameter from the full HF tensors."""
    return weight.split.shard(tensors, *cut(weight))


def sources(model: torch.nn.Module, spec: ModelSpec) -> dict[str, Weight]:
    """Global parameter name -> what it is loaded from."""
    found = {weight.name: weight for weight in weights_of(spec)}
    if spec.tied_embeddings and OUTPUT in global_parameters(model):
        # Under pipeline parallelism the last stage holds its own copy of a tied embedding.
        found[OUTPUT] = found[EMBEDDING]
    return found


@dataclass(frozen=True)
class Grid:
    """All ranks' places, in rank order, and the first layer of each pipeline stage."""

    places: tuple[Place, ...]
    starts: tuple[int, ...]
    num_experts: int
    known: dict[tuple[int, int | None], list[int]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, model: torch.nn.Module, spec: ModelSpec) -> Grid:
        """Collective over all ranks."""
        places: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(places, tuple(_own_place()))
        config = unwrap(model).config
        first, last = config.num_layers_in_first_pipeline_stage, config.num_layers_in_last_pipeline_stage
        sizes = stage_sizes(spec.num_layers, ps.get_pipeline_model_parallel_world_size(), first, last)
        experts = spec.moe.num_experts if spec.moe is not None else 0
        return cls(tuple(Place(*place) for place in places), tuple(stage_starts(sizes)), experts)

    def owners(self, weight: Weight) -> list[int]:
        """Ranks that hold the parts of a weight, in part order; one rank when it is not cut. Of several replicas the
        first counts."""
        stage, ep = weight.stage(self.starts), None
        if weight.expert is not None:
            ep = weight.expert // (self.num_experts // (1 + max(p.ep for p in self.places)))
        # As many answers as stages and shares of experts, for many thousand weights.
        if (stage, ep) not in self.known:
            self.known[stage, ep] = self._holders(stage, ep)
        ranks = self.known[stage, ep]
        return ranks[:1] if weight.split.replicated else ranks

    def _holders(self, stage: int, ep: int | None) -> list[int]:
        found: dict[int, int] = {}
        for rank, p in enumerate(self.places):
            if p.pp != stage:
                continue
            if ep is None and p.replica == 0:
                found.setdefault(p.tp, rank)
            elif ep == p.ep and p.expert_replica == 0:
                found.setdefault(p.etp, rank)
        return [found[part] for part in sorted(found)]


@torch.no_grad()
def export_weights(model: torch.nn.Module, spec: ModelSpec, grid: Grid | None = None) -> Iterator[tuple[str, Tensor]]:
    """Full HF tensors on global rank 0, one after the other in `expected_names` order, each a copy on the device.

    Collective: every rank must iterate it to the end; ranks other than 0 yield nothing. The owners of a weight's parts
    send them to rank 0, which puts them together, so that no rank holds more than one weight beside the model. The type
    is the model's, but float32 for what is kept so in any model.
    """
    grid = grid or Grid.of(model, spec)
    parameters = global_parameters(model)
    me, dtype = dist.get_rank(), unwrap(model).config.params_dtype
    device = next(iter(parameters.values())).device
    for weight in weights_of(spec):
        owners = grid.owners(weight)
        own = parameters[weight.name].detach().contiguous() if me in owners else None
        if me == 0:
            kind = torch.float32 if weight.float32 else dtype
            yield from _receive(weight, owners, own, kind, device)
        elif own is not None:
            dist.send(own, dst=0)


def _receive(
    weight: Weight, owners: list[int], own: Tensor | None, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    shapes = list(weight.hf.values())
    shape = weight.split.shard_shape(shapes, len(owners))
    parts = []
    for rank in owners:
        if rank == 0:
            assert own is not None
            assert own.shape == shape, f"{weight.name}: {tuple(own.shape)} is not {shape}"
            assert own.dtype == dtype, f"{weight.name} is {own.dtype}"
            parts.append(own)
        else:
            part = torch.empty(shape, dtype=dtype, device=device)
            dist.recv(part, src=rank)
            parts.append(part)
    for (name, expected), tensor in zip(weight.hf.items(), weight.split.merge(parts, shapes), strict=True):
        assert tuple(tensor.shape) == expected, f"{name}: {tuple(tensor.shape)} is not {expected}"
        yield name, tensor.clone(memory_format=torch.contiguous_format)
