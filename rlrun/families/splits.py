"""How full Hugging Face tensors become one Megatron parameter on each of `parts` ranks, and back, bit for bit.

Every rule is a permutation of rows or columns, so `merge` undoes `shard` exactly. The methods work on any torch tensor;
torch itself is imported when one is called, because a plan reads the family files too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """torch.cat, without a copy of a single tensor."""
    import torch

    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=dim)


class Split(ABC):
    @abstractmethod
    def shard(self, tensors: Sequence[Tensor], rank: int, parts: int) -> Tensor:
        """The parameter of rank `rank` of `parts`."""

    @abstractmethod
    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        """The full HF tensors (of these shapes) from the parameters of all ranks, in rank order."""

    def shard_shape(self, shapes: Sequence[Shape], parts: int) -> Shape:
        """Shape of the parameter on each rank: the tensors stacked along dim 0, cut along dim 0."""
        rows = sum(shape[0] for shape in shapes)
        return (_share(rows, parts), *shapes[0][1:])

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the whole."""
        return False


def _share(rows: int, parts: int) -> int:
    assert rows % parts == 0, f"{rows} rows do not divide by {parts}"
    return rows // parts


class Replicated(Split):
    def shard(self, tensors: Sequence[Tensor], rank: int, parts: int) -> Tensor:
        return tensors[0]

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [shards[0]]

    def shard_shape(self, shapes: Sequence[Shape], parts: int) -> Shape:
        return shapes[0]

    @property
    def replicated(self) -> bool:
        return True


@dataclass(frozen=True)
class Columns(Split):
    """Cut along dim 0 (output features, vocabulary); `padded` fills up with zero rows to a multiple of the parts."""

    padded: bool = False

    def shard(self, tensors: Sequence[Tensor], rank: int, parts: int) -> Tensor:
        (tensor,) = tensors
        missing = -len(tensor) % parts
        if missing:
            assert self.padded, f"{len(tensor)} rows do not divide by {parts}"
            tensor = cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
        return tensor.chunk(parts)[rank]

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [cat(shards)[: shapes[0][0]]]

    def shard_shape(self, shapes: Sequence[Shape], parts: int) -> Shape:
        rows = shapes[0][0]
        return (-(-rows // parts) if self.padded else _share(rows, parts), *shapes[0][1:])


class Rows(Split):
    """Cut along dim 1 (input features)."""

    def shard(self, tensors: Sequence[Tensor], rank: int, parts: int) -> Tensor:
        return tensors[0].chunk(parts, dim=1)[rank]

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        return [cat(shards, dim=1)]

    def shard_shape(self, shapes: Sequence[Shape], parts: int) -> Shape:
        [(rows, columns)] = shapes
        return (rows, _share(columns, parts))


@dataclass(frozen=True)
class Sections(Split):
    """Sections stacked along dim 0 (gate and up; q, k, v of a convolution); each rank holds its slice of every
    section, one above the other. `sizes` are the rows of the sections, by default one section for each tensor."""

    sizes: tuple[int, ...] | None = None

    def shard(self, tensors: Sequence[Tensor], rank: int, parts: int) -> Tensor:
        sections = cat(tensors).split(self.sizes) if self.sizes is not None else tensors
        return cat([section.chunk(parts)[rank] for section in sections])

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        rows = [shape[0] for shape in shapes]
        sizes = list(self.sizes) if self.sizes is not None else rows
        pieces = [shard.split([_share(size, len(shards)) for size in sizes]) for shard in shards]
        sections = [cat(parts) for parts in zip(*pieces, strict=True)]
        return sections if self.sizes is None else list(cat(sections).split(rows))


@dataclass(frozen=True)
class Qkv(Split):
    """q, k, v interleaved by key/value group: [q ... q k v] for each group; each rank holds a run of rows. With `gated`
    the HF query projection is [query; gate] for each head, and a group is [q ... q gate ... gate k v]. Weights and
    biases alike."""

    num_groups: int
    head_dim: int
    gated: bool = False

    def shard(self, tensors: Sequence[Tensor], rank: int, parts: int) -> Tensor:
        tail = tensors[0].shape[1:]
        by_group = [tensor.reshape(self.num_groups, -1, *tail) for tensor in tensors]
        if self.gated:
            by_group[0] = self._swap(by_group[0], 2, tail)
        return cat(by_group, dim=1).reshape(-1, *tail).chunk(parts)[rank]

    def merge(self, shards: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        tail = shapes[0][1:]
        by_group = cat(shards).reshape(self.num_groups, -1, *tail)
        parts = list(by_group.split([shape[0] // self.num_groups for shape in shapes], dim=1))
        if self.gated:
            parts[0] = self._swap(parts[0], parts[0].shape[1] // self.head_dim // 2, tail)
        return [part.reshape(-1, *tail) for part in parts]

    def _swap(self, queries: Tensor, inner: int, tail: Sequence[int]) -> Tensor:
        """[g, outer * inner * d, ...] -> [g, inner * outer * d, ...]: heads of (query, gate) to queries, then gates."""
        g, d = self.num_groups, self.head_dim
        return queries.reshape(g, -1, inner, d, *tail).transpose(1, 2).reshape(g, -1, *tail)


@dataclass(frozen=True)
class Weight:
    """One Megatron parameter or buffer (`name` has the global numbers of layer and expert) and the HF tensors it is
    made of, with shapes. `place` is the layer's number, or "first" / "last" for the pipeline stage of the embedding /
    the head. `expert` is the number of a routed expert, whose parts are etp ranks and not tp ranks. `float32`: kept so
    whatever the model's type. `initial`: what random weights start as, by name: matrix, one, zero, decay."""

    name: str
    hf: Mapping[str, Shape]
    split: Split
    place: int | str
    expert: int | None = None
    float32: bool = False
    initial: str = "matrix"

    def stage(self, starts: Sequence[int]) -> int:
        """The pipeline stage it is on; `starts` are the first layers of all stages."""
        if isinstance(self.place, int):
            return max(stage for stage, start in enumerate(starts) if start <= self.place)
        return 0 if self.place == "first" else len(starts) - 1
