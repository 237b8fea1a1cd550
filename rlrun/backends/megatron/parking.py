"""The trainer's state, off the GPU and back, bit for bit, while the engines have the GPU.

Tensors share storages: Megatron's parameters are slices of one buffer, main weights of a float32 model are its
parameters. So storages are moved, each once: copied to host memory and emptied, later given their size back and filled.
No tensor object changes, and whatever holds one sees it again. The host memory is pinned on CUDA, and stays for the
next time. Gradients are not copied: every optimizer step begins by zeroing them.

What stays on the GPU is the CUDA context, NCCL's buffers, and what kernels keep as workspace.

On a CPU the same storages move to other host memory: it saves nothing, and rehearses everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor, nn


class Parked:
    """Storages that leave and come back together."""

    def __init__(self) -> None:
        self._host: dict[int, Tensor] = {}  # by address of the storage object: kept between turns
        self._moved: list[tuple[torch.UntypedStorage, int]] = []
        self._freed: list[tuple[torch.UntypedStorage, int]] = []

    @property
    def away(self) -> bool:
        return bool(self._moved or self._freed)

    @property
    def host_bytes(self) -> int:
        """Host memory that is held, also between turns."""
        return sum(copy.nbytes for copy in self._host.values())

    def park(self, tensors: Iterable[Tensor], gradients: Iterable[Tensor] = (), staying: Iterable[Tensor] = ()) -> None:
        """Empties the storages, but those of tensors that are `staying`; of `gradients` nothing is kept."""
        assert not self.away, "parked already"
        stays = _storages(staying)
        moved = {key: storage for key, storage in _storages(tensors).items() if key not in stays}
        freed = {key: s for key, s in _storages(gradients).items() if key not in stays and key not in moved}
        self._moved = [(storage, storage.nbytes()) for storage in moved.values()]
        self._freed = [(storage, storage.nbytes()) for storage in freed.values()]
        # A load replaces tensors: what was theirs on the host is of no use any more.
        self._host = {key: copy for key, copy in self._host.items() if key in moved}
        for storage, nbytes in self._moved:
            self._copy_of(storage, nbytes).copy_(_bytes_of(storage), non_blocking=True)
        _synchronize()
        for storage, _ in self._moved + self._freed:
            storage.resize_(0)

    def unpark(self) -> None:
        """Everything is as it was; gradients are 0."""
        for storage, nbytes in self._moved + self._freed:
            storage.resize_(nbytes)
        for storage, nbytes in self._moved:
            _bytes_of(storage).copy_(self._copy_of(storage, nbytes), non_blocking=True)
        for storage, _ in self._freed:
            _bytes_of(storage).zero_()
        _synchronize()
        self._moved, self._freed = [], []

    def _copy_of(self, storage: torch.UntypedStorage, nbytes: int) -> Tensor:
        found = self._host.get(storage._cdata)
        if found is None or found.nbytes != nbytes:
            pinned = storage.device.type == "cuda"
            found = self._host[storage._cdata] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
        return found


def weights(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers, and the whole of what Megatron has made slices of."""
    yield from model.parameters()
    yield from (model.module if isinstance(model, DistributedDataParallel) else model).buffers()
    for buffer in _megatron_buffers(model):
        if buffer.param_data is not None:
            yield buffer.param_data


def gradients(model: nn.Module) -> Iterator[Tensor]:
    """What they are summed in, over micro-batches and ranks."""
    for buffer in _megatron_buffers(model):
        yield buffer.grad_data


def optimizer_state(optimizer: Any) -> Iterator[Tensor]:
    """Main weights and moments of every optimizer that Megatron has chained together. Main weights of a float32 model
    are its parameters."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if part.optimizer is None:  # no parameter of its kind is on this rank
            continue
        for group in part.optimizer.param_groups:
            yield from group["params"]
        for state in part.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def _megatron_buffers(model: nn.Module) -> list[Any]:
    if not isinstance(model, DistributedDataParallel):  # a frozen model
        return []
    return [*model.buffers, *model.expert_parallel_buffers]


def _storages(tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
    """Each storage once. What is on the host of a GPU's process already is left there, and so is what is empty."""
    home = "cuda" if torch.cuda.is_initialized() else "cpu"
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.device.type == home:
            found[storage._cdata] = storage
    return found


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
