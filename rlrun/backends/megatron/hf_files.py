"""Hugging Face checkpoints on disk: reading them into Megatron, writing them from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlrun.backends.megatron import mapping
from rlrun.errors import Problem, RlrunError
from rlrun.families import hf_shapes, hf_tensors, is_untrained
from rlrun.families.splits import Shape
from rlrun.plan.types import ModelSpec

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_SHARD_BYTES = 4 * 10**9
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", INDEX, "pytorch_model.bin.index.json")


def weight_files(directory: str) -> dict[str, Path]:
    """Tensor name -> file, from the index or the single file. RlrunError when there is neither, or it is broken."""
    folder = Path(directory)
    try:
        if (folder / INDEX).is_file():
            weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
            return {name: folder / file for name, file in weight_map.items()}
        if (folder / SINGLE).is_file():
            with safe_open(folder / SINGLE, framework="pt") as file:
                return dict.fromkeys(file.keys(), folder / SINGLE)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RlrunError(
            _problem("weights-unreadable", f"the weights in {directory} cannot be read: {error}")
        ) from error
    raise RlrunError(
        _problem(
            "weights-not-found",
            f"{directory} has neither {SINGLE} nor {INDEX}",
            "convert the checkpoint to safetensors",
        )
    )


class HfWeights:
    """The tensors of one checkpoint, read one at a time; a context manager that keeps the files open."""

    def __init__(self, directory: str):
        self.directory = directory
        self._files = weight_files(directory)
        self._stack = ExitStack()
        self._open: dict[Path, safe_open] = {}

    def __enter__(self) -> HfWeights:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def names(self) -> list[str]:
        return list(self._files)

    def _file(self, name: str) -> safe_open:
        path = self._files[name]
        if path not in self._open:
            try:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise RlrunError(_problem("weights-unreadable", f"{path} cannot be read: {error}")) from error
        return self._open[path]

    def shape(self, name: str) -> Shape:
        return tuple(self._file(name).get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        return self._file(name).get_tensor(name)


def check(weights: HfWeights, spec: ModelSpec) -> None:
    """Every tensor is accounted for, before any is loaded. RlrunError with all problems together."""
    expected = hf_shapes(spec)
    present = set(weights.names())
    extra = {name for name in present - set(expected) if not is_untrained(spec, name)}
    problems = []
    if spec.tied_embeddings and "lm_head.weight" in extra and "model.embed_tokens.weight" in present:
        # Some tied checkpoints store the embedding twice. That is fine as long as both are the same.
        extra.remove("lm_head.weight")
        if not torch.equal(weights.tensor("lm_head.weight"), weights.tensor("model.embed_tokens.weight")):
            summary = f"{weights.directory}: lm_head.weight differs from the embedding, but the model ties them"
            problems.append(
                _problem("weights-tied-differ", summary, "set model.architecture.tie_word_embeddings=false")
            )
    missing = [name for name in expected if name not in present]
    if missing:
        problems.append(_problem("weights-missing", f"{weights.directory} lacks {_some(missing)}"))
    if extra:
        problems.append(
            _problem(
                "weights-unexpected", f"{weights.directory} has {_some(sorted(extra))}, which {spec.family} has not"
            )
        )
    for name, shape in expected.items():
        if name in present and weights.shape(name) != shape:
            found = list(weights.shape(name))
            problems.append(
                _problem("weights-shape", f"{name} in {weights.directory} is {found}, expected {list(shape)}")
            )
    if problems:
        raise RlrunError(problems)


def _problem(code: str, summary: str, hint: str = "check model.path and model.architecture") -> Problem:
    return Problem(code, summary, hint=hint)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


@torch.no_grad()
def load_hf(model: torch.nn.Module, directory: str, spec: ModelSpec) -> None:
    """Fills every parameter of this rank from the checkpoint, tensor by tensor, casting to the parameter's dtype.

    Raises RlrunError when tensors are missing, unexpected or of another shape; then nothing was loaded. All ranks
    check the whole checkpoint, so they raise together.
    """
    sources = mapping.sources(model, spec)
    with HfWeights(directory) as weights:
        check(weights, spec)
        for name, parameter in mapping.global_parameters(model).items():
            weight = sources[name]
            shard = mapping.shard(weight, [weights.tensor(n) for n in weight.hf])
            assert shard.shape == parameter.shape, f"{name}: {tuple(shard.shape)} for {tuple(parameter.shape)}"
            parameter.copy_(shard)


def write_hf(
    named: Iterable[tuple[str, Tensor]],
    spec: ModelSpec,
    dtype: torch.dtype,
    source: str,
    target: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes tensors in `expected_names` order as one safetensors file, or as shards with an index when they are
    larger than `max_shard_bytes` together; copies config.json (with this dtype) and the tokenizer from `source`."""
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: _numel(shape) * (4 if w.float32 else dtype.itemsize) for name, shape, w in hf_tensors(spec)}
    shards = _plan_shards(sizes, max_shard_bytes)
    weight_map: dict[str, str] = {}
    stream = iter(named)
    for number, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = dict(_take(stream, names))
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    assert next(stream, None) is None, "more tensors than the model has"
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    _copy_side_files(Path(source), folder, dtype)


def _take(stream: Iterator[tuple[str, Tensor]], names: list[str]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        found, tensor = next(stream)
        assert found == name, f"{found} came where {name} was expected"
        yield name, tensor.cpu()


def _plan_shards(sizes: dict[str, int], max_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name, nbytes in sizes.items():
        if shards[-1] and size + nbytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += nbytes
    return shards


def _numel(shape: Shape) -> int:
    return torch.Size(shape).numel()


def _copy_side_files(source: Path, target: Path, dtype: torch.dtype) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(NOT_COPIED):
            shutil.copyfile(path, target / path.name)
    config = json.loads((target / "config.json").read_text())
    # transformers 5 writes `dtype`, earlier releases and most checkpoints `torch_dtype`.
    for key in [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]:
        config[key] = str(dtype).removeprefix("torch.")
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
