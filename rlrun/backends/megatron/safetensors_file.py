"""One safetensors file, written piece by piece: nothing is held but the piece.

The format: the length of the header (8 bytes, little-endian), the header (JSON: name -> dtype, shape, place), the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rlrun.families.splits import Shape

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {name: dtype for dtype, name in NAMES.items()}


def num_bytes(shape: Shape, dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


class SafetensorsFile:
    """A context manager. Every element of every tensor has to be written once before it ends without an error."""

    def __init__(self, path: Path, tensors: Mapping[str, tuple[Shape, torch.dtype]]):
        self._tensors, self._begin, self._left = dict(tensors), {}, {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        # Wide types first, so that every tensor begins at a multiple of its element's size.
        for name, (shape, dtype) in sorted(tensors.items(), key=lambda item: (-item[1][1].itemsize, item[0])):
            self._begin[name], self._left[name] = end, math.prod(shape)
            end += num_bytes(shape, dtype)
            places = [self._begin[name], end]
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": places}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._data = 8 + len(text)
        self._file = open(path, "wb")  # noqa: SIM115  (closed by __exit__)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self._data + end)

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        assert kind is not None or not any(self._left.values()), (
            f"not written: {[n for n, e in self._left.items() if e]}"
        )

    def write(self, name: str, tensor: Tensor, start: int = 0) -> None:
        """Elements `start` and following of the tensor `name`, in row-major order."""
        _, dtype = self._tensors[name]
        data = tensor.detach().to("cpu", dtype).contiguous()
        self._left[name] -= data.numel()
        assert self._left[name] >= 0, f"{name} is written twice"
        self._file.seek(self._data + self._begin[name] + start * dtype.itemsize)
        self._file.write(data.reshape(-1).view(torch.uint8).numpy().data)
