"""Reading Hugging Face checkpoints into Megatron: every layout in which a family is stored, one weight at a time.

The headers of the files say where each tensor lies (`rlrun.plan.weight_names`), and everything that is wrong is known
from them before anything is loaded. A tensor that is part of another one, such as an expert of a packed layer, is read
without the rest of it. FP8 becomes floating point here: value x scale of its block.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlrun.backends.megatron import mapping
from rlrun.backends.megatron.slow import Slow
from rlrun.errors import Problem, RlrunError
from rlrun.families.splits import Weight
from rlrun.plan.types import ModelSpec
from rlrun.plan.weight_files import INDEX, Stored, has_weights, missing_shards, read_weight_files
from rlrun.plan.weight_names import FP8, HEAD, SCALE, Account, Source, account, block_size, problems, some

HINT = "check model.path and model.architecture"


def stored_tensors(directory: str) -> dict[str, Stored]:
    """What the files hold. RlrunError with everything that is wrong with them."""
    folder = Path(directory)
    if not has_weights(folder):
        summary = f"{directory} has neither {INDEX} nor *.safetensors"
        raise RlrunError(Problem("weights-not-found", summary, hint="convert the checkpoint to safetensors"))
    files, missing = read_weight_files(folder), missing_shards(folder)
    faults = [*([f"it lacks {some(missing)}"] if missing else []), *files.faults]
    if not faults and not files.tensors:
        faults = ["it holds no tensor"]
    if faults:
        again = "download the whole checkpoint into that folder again"
        raise RlrunError([Problem("weights-unreadable", f"{directory} is damaged: {f}", hint=again) for f in faults])
    return dict(files.tensors)


class HfWeights:
    """The tensors of one checkpoint under the names of its family, read one at a time; a context manager that keeps the
    files open. With `wanted`, the tensors of these weights alone; others are then nobody's business.

    Raises RlrunError when the files are not there or damaged; what they lack is in `found` and told by `check`.
    """

    def __init__(self, directory: str, spec: ModelSpec, wanted: Iterable[Weight] | None = None):
        self.directory, self.spec = directory, spec
        self.stored = stored_tensors(directory)
        self.block = block_size(Path(directory))
        self.found: Account = account(self.stored, spec, self.block, wanted)
        self._stack = ExitStack()
        self._open: dict[str, safe_open] = {}

    def __enter__(self) -> HfWeights:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _file(self, name: str) -> safe_open:
        file = self.stored[name].file
        if file not in self._open:
            path = Path(self.directory) / file
            try:
                self._open[file] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                summary = f"{path} cannot be read: {error}"
                raise RlrunError(Problem("weights-unreadable", summary, hint=HINT)) from error
        return self._open[file]

    def raw(self, name: str) -> Tensor:
        """A stored tensor, as it is."""
        return self._file(name).get_tensor(name)

    def tensor(self, name: str) -> Tensor:
        """A tensor of the family. FP8 is float32, everything else in the type that it is stored in."""
        return self._read(self.found.sources[name])

    def _read(self, source: Source) -> Tensor:
        if source.scale is not None:
            return self._dequantised(source)
        if source.expert is None:
            return self.raw(source.name)
        whole = self._file(source.name).get_slice(source.name)
        return whole[source.expert] if source.rows is None else whole[source.expert, source.rows[0] : source.rows[1]]

    def _dequantised(self, source: Source) -> Tensor:
        assert source.scale is not None
        if source.expert is None:
            return dequantise(self.raw(source.name), self.raw(source.scale), self.block)
        values = self._file(source.name).get_slice(source.name)[source.expert]
        scales = self._file(source.scale).get_slice(source.scale)[source.expert]
        whole = dequantise(values, scales, self.block)
        return whole if source.rows is None else whole[source.rows[0] : source.rows[1]].clone()

    def left_over(self, name: str) -> Tensor:
        """A stored tensor that the family does not train. FP8 with scales is float32."""
        scale = name + SCALE
        if self.stored[name].dtype == FP8 and scale in self.stored:
            return dequantise(self.raw(name), self.raw(scale), self.block)
        return self.raw(name)


def dequantise(values: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """[r, c] FP8 and a scale for each block of `block` rows and columns, [ceil(r / rows), ceil(c / columns)] -> [r, c]
    float32. A float8_e4m3fn has 4 significant bits, so the only rounding is that of the product. [r] counts as one
    column, [e, r, c] with scales [e, ...] as e matrices."""
    if values.dim() > 2:
        return torch.stack([dequantise(v, s, block) for v, s in zip(values, scales, strict=True)])
    wide = values.float() if values.dim() > 1 else values.float()[:, None]
    rows = torch.arange(wide.shape[0]) // block[0]
    columns = torch.arange(wide.shape[1]) // block[1]
    factors = scales.float().reshape(-1, scales.shape[-1])
    # Row blocks one after the other: a table of all factors would be as large as the matrix.
    for number in range(int(rows[-1]) + 1 if len(rows) else 0):
        wide[number * block[0] : (number + 1) * block[0]] *= factors[number, columns]
    return wide.reshape(values.shape)


def check(weights: HfWeights, hint: str = HINT) -> None:
    """Every tensor is accounted for, before any is loaded. RlrunError with all problems together."""
    found = weights.found
    told = problems(found, weights.directory, weights.spec, hint)
    embedding = next((name for name in found.sources if name.endswith("embed_tokens.weight")), None)
    # Some tied checkpoints store the embedding twice. That is fine as long as both are the same.
    twice = found.tied_head is not None and embedding is not None
    if twice and not torch.equal(weights.raw(HEAD), weights.raw(found.sources[str(embedding)].name)):
        summary = f"{weights.directory}: {HEAD} differs from the embedding, but the model ties them"
        other = "set model.architecture.tie_word_embeddings=false"
        told.append(Problem("weights-tied-differ", summary, hint=other))
    if told:
        raise RlrunError(told)


@torch.no_grad()
def load_hf(model: torch.nn.Module, directory: str, spec: ModelSpec) -> None:
    """Fills every parameter of this rank from the checkpoint, tensor by tensor, casting to the parameter's dtype.

    Raises RlrunError when tensors are missing, unexpected or of another shape; then nothing was loaded. All ranks
    check the whole checkpoint, so they raise together.
    """
    with HfWeights(directory, spec) as weights:
        check(weights)
        fill(model, weights, mapping.sources(model, spec))


@torch.no_grad()
def fill(model: torch.nn.Module, weights: HfWeights, sources: dict[str, Weight], skip: tuple[str, ...] = ()) -> None:
    """Every parameter but those of the names `skip`, from weights that have been checked."""
    wanted = {name: p for name, p in mapping.global_parameters(model).items() if name not in skip}
    slow = Slow(f"reading {weights.directory}", sum(p.nbytes for p in wanted.values()))
    for name, parameter in wanted.items():
        weight = sources[name]
        shard = mapping.shard(weight, [weights.tensor(n) for n in weight.hf])
        assert shard.shape == parameter.shape, f"{name}: {tuple(shard.shape)} for {tuple(parameter.shape)}"
        parameter.copy_(shard)
        slow.add(parameter.nbytes)
    slow.end()
