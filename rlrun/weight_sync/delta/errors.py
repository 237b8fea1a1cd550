"""Why a delta was refused.

Every error is a RunFailed: `part` says where, `summary` what, `hint` one thing that helps.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.errors import RunFailed

SHOWN = 5
"""Problems of one kind that a message lists before it counts the rest."""
FULL_PUSH = "give this engine a full push of the new version instead"


class DeltaError(RunFailed):
    """Base of all. The weights it was meant for are untouched whenever one of these is raised."""


class BadFormat(DeltaError):
    """These bytes are no frame of an update, or one of another format version."""


class Truncated(DeltaError):
    """Bytes, frames or tensors of the update are missing, or there are more of them than announced."""


class Corrupt(DeltaError):
    """A checksum does not match, or the content contradicts itself."""


class MixedUpdates(DeltaError):
    """Frames of different updates were put together, or one was given twice."""


class WrongBase(DeltaError):
    """The version held is neither the base of the delta nor its result. Needs a full push."""


class WrongTensors(DeltaError):
    """Names, shapes or dtypes are not those of the weights held. Lists every difference."""


class WrongContent(DeltaError):
    """The weights held are not what their version says: the result would differ from the trainer's. Needs a full
    push."""


class SenderError(DeltaError):
    """The sender's own order of calls or stream of tensors is wrong."""


def listed(items: Sequence[str], separator: str = ", ") -> str:
    """The first few, and how many more."""
    more = f"{separator}and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return separator.join(items[:SHOWN]) + more
