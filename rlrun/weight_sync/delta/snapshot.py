"""The sender's memory of what the engines hold: the last version that all of them confirmed.

Diffs are taken against it, never against what was merely sent: when an engine fails, `rollback` and the next update
starts from what the engines really have. The first version must be what the engines *loaded*; a run that resumes has
weights which the engines' checkpoint does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from rlrun.weight_sync.delta.codec import DTYPES, dtype_name
from rlrun.weight_sync.delta.errors import SenderError, listed
from rlrun.weight_sync.delta.packs import PACK, Encoded, OldAndNew, encode_all
from rlrun.weight_sync.delta.stream import Frame, Update, write_update

PART = "delta sender"
Named = Iterable[tuple[str, Tensor]]


class Snapshot:
    """A full copy of the weights, and the update that is under way. Used from one thread.

    `device` is where the copy lives. On the CPU beside a GPU it is pinned, and each tensor crosses the bus once an
    update to be compared; on the GPU it costs the weights' memory a second time. `nbytes` is the copy, `pending_bytes`
    the update not yet confirmed; the working memory beside them is a pack (`packs`) of each dtype and a bucket. With
    `low_bits` values are shortened where that helps (`values`), from 16 bits to 2 for steps of one unit in bf16.

        for frame in snapshot.update(weights, version, bucket_bytes):
            send(frame)
        snapshot.commit() if all_confirmed else snapshot.rollback()
    """

    def __init__(self, device: str | torch.device = "cpu", low_bits: bool = False, pack_elements: int = PACK):
        self.version: int | None = None
        self._low_bits, self._pack_elements = low_bits, pack_elements
        self._device = torch.device(device)
        self._pinned = self._device.type == "cpu" and torch.cuda.is_available()
        self._tensors: dict[str, Tensor] = {}
        self._state: Literal["idle", "streaming", "pending"] = "idle"
        self._pending: list[Frame] = []

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    @property
    def pending_bytes(self) -> int:
        return sum(frame.nbytes for frame in self._pending)

    def take(self, named_tensors: Named, version: int) -> None:
        """Copies the weights that every engine holds as `version`, in place of what was remembered before. Raises
        SenderError for a name that comes twice or a dtype that has no delta."""
        self._expect("idle", "take")
        self.version, self._tensors = None, {}
        for name, tensor in named_tensors:
            if name in self._tensors:
                raise SenderError(PART, f"the trainer gives {name} twice")
            if dtype_name(tensor) not in DTYPES:
                raise SenderError(PART, f"{name} is {dtype_name(tensor)}; known are {', '.join(DTYPES)}")
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device, pin_memory=self._pinned)
            self._tensors[name] = copy.copy_(tensor.detach())
        self.version = version

    def needs_full_push(self, held_version: int | None) -> bool:
        """Whether an engine that holds this version cannot take the next delta."""
        return self.version is None or held_version != self.version

    def update(self, named_tensors: Named, version: int, bucket_bytes: int) -> Iterator[Frame]:
        """Frames from the remembered version to `version`; all names of the snapshot, each once, in any order, drawn as
        the frames are. Ends in `commit` or `rollback`; abandoning the frames is a rollback. Raises SenderError when
        names, shapes or dtypes are not those remembered."""
        self._expect("idle", "update")
        if self.version is None:
            raise SenderError(PART, "there is no base: take the weights that the engines hold first")
        if version == self.version:
            raise SenderError(PART, f"version {version} is what the engines hold; a new update needs a new version")
        encoded = encode_all(self._old_and_new(named_tensors), self._low_bits, self._pack_elements)
        return self._stream(encoded, version, bucket_bytes)

    def full(self, bucket_bytes: int) -> Iterator[Frame]:
        """Frames of a full push of the remembered version, for an engine that came late or lost its way."""
        self._expect("idle", "full")
        if self.version is None:
            raise SenderError(PART, "there are no weights to push: take them first")
        new_only: Iterator[OldAndNew] = ((name, None, tensor) for name, tensor in self._tensors.items())
        encoded = encode_all(new_only, pack_elements=self._pack_elements)
        return write_update(encoded, None, self.version, bucket_bytes)

    def commit(self) -> None:
        """All engines have confirmed: what was sent becomes what is remembered. The engines need not wait for it; on a
        CPU it decodes and writes the changes of some 4 GB of weights in a second."""
        self._expect("pending", "commit")
        update = Update.read(self._pending)
        self.version = update.apply(self._tensors, self.version, content=False)
        self._reset()

    def rollback(self) -> None:
        """Forgets the update; the engines are taken to hold what they held before. Those that do not need a full
        push. Does nothing when no update is pending."""
        self._reset()

    def _stream(self, encoded: Iterator[Encoded], version: int, bucket_bytes: int) -> Iterator[Frame]:
        self._expect("idle", "update")
        self._state, self._pending = "streaming", []
        pending = self._pending
        try:
            for frame in write_update(encoded, self.version, version, bucket_bytes):
                # A frame on the GPU is copied to the host: pending updates take no GPU memory.
                pending.append(Frame(frame.head, frame.body.to("cpu")))
                yield frame
                if self._pending is not pending:
                    raise SenderError(PART, f"the update to version {version} goes on after a rollback")
        except BaseException:
            # May run late, when the generator is collected: by then another update can be under way.
            if self._pending is pending:
                self._reset()
            raise
        self._state = "pending"

    def _old_and_new(self, named_tensors: Named) -> Iterator[OldAndNew]:
        missing = dict.fromkeys(self._tensors)
        for name, tensor in named_tensors:
            if name not in missing:
                what = "twice" if name in self._tensors else "which the engines do not hold"
                raise SenderError(PART, f"the trainer gives {name} {what}")
            del missing[name]
            old, new = self._tensors[name], tensor.detach()
            if (old.dtype, old.shape) != (new.dtype, new.shape):
                raise SenderError(
                    PART,
                    f"{name} was {dtype_name(old)} {list(old.shape)}, is {dtype_name(new)} {list(new.shape)}",
                )
            yield name, old, new
        if missing:
            raise SenderError(PART, f"the trainer did not give {listed(list(missing))}")

    def _expect(self, state: str, doing: str) -> None:
        if self._state != state:
            raise SenderError(PART, f"{doing} while the snapshot is {self._state}, not {state}")

    def _reset(self) -> None:
        self._state, self._pending = "idle", []
