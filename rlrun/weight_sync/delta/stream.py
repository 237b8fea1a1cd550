"""One update of all weights, from one version to the next, as self-describing frames; read, checked, then applied.

A frame is a head (bytes) and a body (uint8 tensor, on any device), so that heads can go by HTTP and bodies by a
broadcast, or both, end to end, into a file:

    head   magic 8 | crc32 4 | format 4 | length 8 | JSON, padded with spaces: a multiple of 64 bytes in all
    body   the payloads of the frame's packs of tensors, end to end

The crc32 covers the head after itself. The JSON has the update's id, base and version, the frame's index, whether it is
the last, the number of tensors so far, and for every pack: names and shapes, dtype, segments, the fingerprint of its
payload and the fingerprint that its tensors will have. Either checksum notices every change of a single byte.

Every tensor of the model is listed, changed or not. Base None is a full push: all tensors dense, for any version held.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import prod
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from rlrun.weight_sync.delta.codec import Delta, Segment, decode, dtype_name
from rlrun.weight_sync.delta.errors import (
    FULL_PUSH,
    BadFormat,
    Corrupt,
    MixedUpdates,
    Truncated,
    WrongBase,
    WrongContent,
    WrongTensors,
    listed,
)
from rlrun.weight_sync.delta.fingerprint import fingerprint
from rlrun.weight_sync.delta.packs import Encoded, Part, Record

MAGIC = b"rlrun\x00dw"
FORMAT = 1
PREFIX = struct.Struct("<8sIIQ")
CRC_END = 12
"""Bytes of the prefix that the crc32 does not cover: magic and itself."""
HEAD_ALIGN = 64
SEND_AGAIN = "send the update again"

Buffer: TypeAlias = bytes | bytearray | memoryview | Tensor


@dataclass(frozen=True)
class Frame:
    """`head` as bytes on the host; `body` is uint8 [*] wherever its tensors were encoded or received."""

    head: bytes
    body: Tensor

    @property
    def nbytes(self) -> int:
        return len(self.head) + self.body.numel()

    def to_bytes(self) -> bytes:
        return self.head + self.body.cpu().numpy().tobytes()

    @classmethod
    def split(cls, buffer: Buffer) -> Frame:
        """Cuts head and body apart. A writable buffer is used in place, `bytes` are copied. Raises BadFormat or
        Truncated when there is no head to go by; everything else is for `Update.read`."""
        if isinstance(buffer, Tensor):
            flat = buffer.detach().reshape(-1).view(torch.uint8)
        else:
            view = memoryview(buffer)
            data = bytearray(view) if view.readonly else view
            flat = torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
        prefix = flat[: PREFIX.size].cpu().numpy().tobytes()
        end = PREFIX.size + _head_length(prefix)
        if flat.numel() < end:
            raise Truncated("frame", f"{flat.numel()} bytes, its head alone has {end}", SEND_AGAIN)
        return cls(flat[:end].cpu().numpy().tobytes(), flat[end:])


def write_update(
    encoded: Iterable[Encoded], base_version: int | None, version: int, bucket_bytes: int, update_id: str | None = None
) -> Iterator[Frame]:
    """Frames whose bodies have at most `bucket_bytes`, or one pack; at least one frame. Lazy: holds one body, and the
    pack that did not fit. Frames of updates with different ids are never taken for one."""
    assert bucket_bytes > 0, bucket_bytes
    assert version != base_version, version
    common = {"update": update_id or uuid.uuid4().hex, "base": base_version, "version": version}
    bucket: list[Encoded] = []
    index = size = tensors = 0
    for item in encoded:
        if bucket and size + item.delta.nbytes > bucket_bytes:
            yield _frame(bucket, {**common, "index": index, "last": False, "tensors": tensors})
            bucket, size, index = [], 0, index + 1
        bucket.append(item)
        size, tensors = size + item.delta.nbytes, tensors + len(item.parts)
    yield _frame(bucket, {**common, "index": index, "last": True, "tensors": tensors})


@dataclass(frozen=True)
class Update:
    """All frames of one update, whole and unharmed. Holds their bodies."""

    base_version: int | None
    version: int
    update_id: str
    records: tuple[Record, ...]

    @property
    def changed(self) -> int:
        """Elements, of all tensors."""
        return sum(record.delta.changed for record in self.records)

    @property
    def nbytes(self) -> int:
        """Bytes of all payloads."""
        return sum(record.delta.nbytes for record in self.records)

    @classmethod
    def read(cls, frames: Iterable[Frame | Buffer]) -> Update:
        """Reads all frames of an update, in any order. Raises BadFormat, Truncated, Corrupt or MixedUpdates."""
        heads: dict[int, dict[str, Any]] = {}
        records: list[Record] = []
        names: set[str] = set()
        for frame in frames:
            if not isinstance(frame, Frame):
                frame = Frame.split(frame)
            head = _read_head(frame.head)
            known = next(iter(heads.values()), head)
            for key in ("update", "base", "version"):
                if head[key] != known[key]:
                    raise MixedUpdates(_where(head), f"is of {key} {head[key]!r}, another of {key} {known[key]!r}")
            if head["index"] in heads:
                raise MixedUpdates(_where(head), "was given twice")
            heads[head["index"]] = head
            records += _read_records(head, frame.body)
            for name in [part[0] for record in head["records"] for part in record[0]]:
                if name in names:
                    raise Corrupt(_where(head), f"has {name}, which another place has too")
                names.add(name)
        _check_complete(heads, len(names))
        head = heads[0]
        return cls(head["base"], head["version"], head["update"], tuple(records))

    def fit(self, held_version: int | None) -> Literal["apply", "held", "full_push"]:
        """What an engine with this version should do: apply; nothing, as it has the result (to apply is harmless); or
        ask for a full push, because it missed a version, is from before a restart, or has none."""
        if self.base_version is None or held_version == self.base_version:
            return "apply"
        return "held" if held_version == self.version else "full_push"

    def check(self, targets: Mapping[str, Tensor], held_version: int | None, content: bool = True) -> None:
        """Everything that could be wrong with applying this update to `targets`, which are only read.

        Raises WrongBase; WrongTensors with all differences of names, shapes and dtypes; Corrupt when a payload
        contradicts itself; and, unless `content` is False, WrongContent when tensors would not become the trainer's,
        bit for bit. That reads every tensor once. It passes for tensors to which a part was already applied.
        """
        if self.fit(held_version) == "full_push":
            raise WrongBase(
                "weights",
                f"version {held_version} is held; this update leads from {self.base_version} to {self.version}",
                FULL_PUSH,
            )
        problems = self._tensor_problems(targets)
        if problems:
            raise WrongTensors("weights", listed(problems, "; "), "the two sides do not run the same model")
        results = []
        for record in self.records:
            try:
                if content:
                    results.append(record.result(targets))
                else:
                    deque(decode(record.delta), maxlen=0)
            except ValueError as e:
                raise Corrupt(f"tensor {record.name}", str(e), SEND_AGAIN) from e
        pairs = zip(self.records, _to_host(results), strict=True) if content else ()
        wrong = [part.name for record, found in pairs if found != record.fingerprint for part in record.parts]
        if wrong:
            raise WrongContent(
                "weights",
                f"of {len(targets)} tensors held as version {held_version} these, or some of them, would not become "
                f"version {self.version}: {listed(wrong)}",
                FULL_PUSH,
            )

    def apply(self, targets: Mapping[str, Tensor], held_version: int | None, content: bool = True) -> int:
        """`check`, then writes into `targets`, in place. Returns the version that they now are. When the check raises,
        nothing was written; when the device fails while writing, apply the same update again."""
        self.check(targets, held_version, content)
        for record in self.records:
            record.write(targets)
        return self.version

    def _tensor_problems(self, targets: Mapping[str, Tensor]) -> list[str]:
        sent = {part.name: (record.delta.dtype, part.shape) for record in self.records for part in record.parts}
        problems = [f"{name} is not in the update" for name in targets if name not in sent]
        for name, (dtype, shape) in sent.items():
            if name not in targets:
                problems.append(f"{name} is not held")
                continue
            held = (dtype_name(targets[name]), tuple(targets[name].shape))
            if (dtype, shape) != held:
                problems.append(f"{name} is {dtype} {list(shape)} in the update, {held[0]} {list(held[1])} here")
        return problems


def _to_host(scalars: Sequence[Tensor]) -> list[int]:
    """One transfer for each device, not for each tensor."""
    values: list[int] = [0] * len(scalars)
    for device in {scalar.device for scalar in scalars}:
        which = [i for i, scalar in enumerate(scalars) if scalar.device == device]
        for i, value in zip(which, torch.stack([scalars[i] for i in which]).tolist(), strict=True):
            values[i] = value
    return values


def _frame(bucket: Sequence[Encoded], fields: dict[str, Any]) -> Frame:
    checksums = _to_host([fingerprint(item.delta.payload) for item in bucket])
    results = _to_host([item.result for item in bucket])
    records = [
        [item.parts, item.delta.dtype, [astuple(segment) for segment in item.delta.segments], checksum, result]
        for item, checksum, result in zip(bucket, checksums, results, strict=True)
    ]
    text = json.dumps({**fields, "records": records}, separators=(",", ":")).encode()
    text += b" " * (-(PREFIX.size + len(text)) % HEAD_ALIGN)
    covered = PREFIX.pack(MAGIC, 0, FORMAT, len(text))[CRC_END:] + text
    head = MAGIC + struct.pack("<I", zlib.crc32(covered)) + covered
    payloads = [item.delta.payload for item in bucket]
    return Frame(head, torch.cat(payloads) if payloads else torch.empty(0, dtype=torch.uint8))


def _head_length(prefix: bytes) -> int:
    """Of the JSON. Says whose bytes these are not."""
    if len(prefix) < PREFIX.size:
        raise Truncated("frame", f"{len(prefix)} bytes, its prefix alone has {PREFIX.size}", SEND_AGAIN)
    magic, _, version, length = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise BadFormat("frame", f"begins with {magic!r}, not with {MAGIC!r}", "this is no frame of a weight update")
    if version != FORMAT:
        raise BadFormat("frame", f"format {version}, known is {FORMAT}", "run the same rlrun on both sides")
    return length


def _read_head(head: bytes) -> dict[str, Any]:
    length = _head_length(head[: PREFIX.size])
    if len(head) != PREFIX.size + length:
        raise Truncated("frame", f"a head of {len(head)} bytes announces {PREFIX.size + length}", SEND_AGAIN)
    (crc,) = struct.unpack_from("<I", head, len(MAGIC))
    if zlib.crc32(head[CRC_END:]) != crc:
        raise Corrupt("frame", "the checksum of its head does not match", SEND_AGAIN)
    try:
        fields = json.loads(head[PREFIX.size :])
        missing = {"update", "base", "version", "index", "last", "tensors", "records"} - set(fields)
    except (ValueError, TypeError) as e:
        raise BadFormat("frame", f"its head is no JSON object: {e}") from e
    if missing:
        raise BadFormat("frame", f"its head lacks {listed(sorted(missing))}")
    return fields


def _read_records(head: dict[str, Any], body: Tensor) -> list[Record]:
    """The frame's packs, with payloads that are views of `body`. Raises BadFormat, Truncated or Corrupt."""
    records, checksums, at = [], [], 0
    try:
        for part_list, dtype, segment_list, checksum, result in head["records"]:
            parts = tuple(Part(name, tuple(shape)) for name, shape in part_list)
            segments = tuple(map(Segment.from_list, segment_list))
            elements = sum(prod(part.shape) for part in parts)
            shape = parts[0].shape if len(parts) == 1 else (elements,)
            size = Delta(dtype, shape, segments, body).nbytes
            record = Record(parts, Delta(dtype, shape, segments, body[at : at + size]), result)
            if sum(segment.elements for segment in segments) != elements:
                raise ValueError(f"the segments of {record.name} do not add up to its {elements} elements")
            records.append(record)
            checksums.append(checksum)
            at += size
    except (KeyError, TypeError, ValueError) as e:
        raise BadFormat(_where(head), f"its head is not understood: {e!r}") from e
    if at != body.numel():
        raise Truncated(_where(head), f"a body of {body.numel()} bytes, its head announces {at}", SEND_AGAIN)
    found = _to_host([fingerprint(record.delta.payload) for record in records])
    wrong = [r.name for r, want, got in zip(records, checksums, found, strict=True) if want != got]
    if wrong:
        raise Corrupt(_where(head), f"the payload's checksum does not match for {listed(wrong)}", SEND_AGAIN)
    return records


def _check_complete(heads: dict[int, dict[str, Any]], tensors: int) -> None:
    if not heads:
        raise Truncated("update", "no frames at all", SEND_AGAIN)
    last = [head for head in heads.values() if head["last"]]
    if not last:
        raise Truncated("update", f"its last frame is missing; there are {len(heads)} others", SEND_AGAIN)
    count = last[0]["index"] + 1
    missing = [str(index) for index in range(count) if index not in heads]
    if missing:
        raise Truncated("update", f"of {count} frames these are missing: {listed(missing)}", SEND_AGAIN)
    if len(heads) != count or len(last) != 1:
        raise MixedUpdates("update", f"{len(heads)} frames, of which frame {count - 1} says that it is the last")
    if tensors != last[0]["tensors"]:
        raise Truncated("update", f"{tensors} tensors, its last frame counts {last[0]['tensors']}", SEND_AGAIN)


def _where(head: dict[str, Any]) -> str:
    return f"frame {head['index']} of version {head['version']}"
