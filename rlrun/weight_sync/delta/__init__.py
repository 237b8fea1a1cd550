"""Delta weight sync: only the elements that changed between two policy versions, with proof that the result is right.

Between two versions of a policy 1 to 3 % of the bf16 elements change. This package is the codec, without engines:

    Snapshot     the sender: what all engines hold, diffs against it, commit or rollback
    Frame        a head (bytes) and a body (uint8 tensor), of bounded size
    Update       the receiver: read all frames, check, then apply; or be told to ask for a full push

A sender's thread draws frames from `Snapshot.update` and hands each on as it comes: heads by HTTP and bodies by a NCCL
or gloo broadcast (they are on the device of the weights, and need no staging), or `Frame.to_bytes` into one file each.
Frames may arrive in any order. Only when every engine has confirmed the version does the sender `commit`.

An engine keeps the version that it holds, collects frames (`Frame.split` for those from files), and calls

    update = Update.read(frames)
    held = update.apply(dict(model.named_parameters()), held)

Nothing is written until everything was checked: both checksums, names, shapes, dtypes, the base version, and that each
tensor, with the changes, has the trainer's fingerprint. A DeltaError leaves the weights as they were; its subclass says
whether to send again (BadFormat, Truncated, Corrupt, MixedUpdates), to push all (WrongBase, WrongContent) or to give up
(WrongTensors). The targets may be views, such as the rows of q_proj in a fused qkv_proj, and of any strides.

Values are absolute: to apply an update twice, or again after a part of it, changes nothing. They are whole, or with
`Snapshot(low_bits=True)` cut to their lowest bits, which is half the bytes or less when weights move by single units.

SGLang holds fused and sliced weights: there `mirror` keeps a copy under the trainer's names, which takes the changes
from a `file` of frames, and the model loads what they touched.

An engine that holds slices of the tensors (tensor parallelism) takes `Record.changes` of the records after
`Update.read`: flat positions in each whole tensor and the values there, of which it keeps those in its slice. The
fingerprint is a sum over elements, so such ranks can add up theirs.
"""

from rlrun.weight_sync.delta.codec import Changes, Delta, apply, decode, encode
from rlrun.weight_sync.delta.errors import (
    BadFormat,
    Corrupt,
    DeltaError,
    MixedUpdates,
    SenderError,
    Truncated,
    WrongBase,
    WrongContent,
    WrongTensors,
)
from rlrun.weight_sync.delta.packs import Record, encode_all
from rlrun.weight_sync.delta.snapshot import Snapshot
from rlrun.weight_sync.delta.stream import Frame, Update, write_update

__all__ = [
    "BadFormat",
    "Changes",
    "Corrupt",
    "Delta",
    "DeltaError",
    "Frame",
    "MixedUpdates",
    "Record",
    "SenderError",
    "Snapshot",
    "Truncated",
    "Update",
    "WrongBase",
    "WrongContent",
    "WrongTensors",
    "apply",
    "decode",
    "encode",
    "encode_all",
    "write_update",
]
