"""The frames of one update in one file: each after its length, 8 bytes, little-endian.

Frames are multiples of 8 bytes, so that their payloads can be viewed in place. A wrong byte anywhere is noticed: in a
length, because frames then do not fill the file or are not frames; elsewhere by the frame's own checksums.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

import torch

from rlrun.weight_sync.delta.errors import Truncated
from rlrun.weight_sync.delta.stream import SEND_AGAIN, Frame

LENGTH = struct.Struct("<Q")


def write_frames(path: str, frames: Iterable[Frame]) -> int:
    """Draws the frames into a file, which has this name only when it is complete. Returns its bytes. Raises OSError
    when the disk is full or the like, and whatever the frames raise; then there is no file."""
    partial = f"{path}.tmp"
    try:
        # Not forced to the disk: nobody reads these files after a crash.
        with open(partial, "wb") as file:
            for frame in frames:
                file.write(LENGTH.pack(frame.nbytes))
                file.write(frame.head)
                file.write(frame.body.cpu().numpy().data)
            size = file.tell()
        os.replace(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.remove(partial)
        raise
    return size


def read_frames(path: str) -> list[Frame]:
    """The frames, as views of the mapped file. Raises OSError, Truncated or BadFormat; the rest is for
    `Update.read`."""
    size = os.path.getsize(path)
    if not size:
        raise Truncated(path, "the file is empty", SEND_AGAIN)
    data = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
    frames, at = [], 0
    while at < size:
        (length,) = LENGTH.unpack(data[at : at + LENGTH.size].numpy().tobytes().ljust(LENGTH.size, b"\0"))
        at += LENGTH.size
        if at + length > size:
            raise Truncated(path, f"{size} bytes, and a frame of {length} begins at byte {at}", SEND_AGAIN)
        frames.append(Frame.split(data[at : at + length]))
        at += length
    return frames
