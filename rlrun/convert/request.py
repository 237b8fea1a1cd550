"""What a conversion is asked for, checked as far as that goes without torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.data.folders import debris, refuse
from rlrun.errors import Problem, RlrunError, Where
from rlrun.families import FAMILIES
from rlrun.plan.model_spec import spec_from_directory
from rlrun.plan.types import ModelSpec

KINDS = ("hf-to-megatron", "megatron-to-hf", "hf-to-hf")
DTYPES = ("bfloat16", "float32")
LAYOUT = ("tp", "pp", "ep", "etp", "cp", "dp")
USAGE = "write rlrun convert hf-to-megatron|megatron-to-hf|hf-to-hf SOURCE TARGET"


@dataclass(frozen=True)
class Request:
    """`dtype`: of the weights that are written; None for the type that they have. `origin`: the Hugging Face checkpoint
    whose config.json and tokenizer belong to a Megatron checkpoint; `fill_from`: one that has the tensors which are not
    trained; both for megatron-to-hf."""

    kind: str
    source: Path
    target: Path
    dtype: str | None = None
    origin: Path | None = None
    fill_from: Path | None = None
    verify: bool = False


def parse(words: Sequence[str], origin: str | None, fill_from: str | None, verify: bool) -> Request:
    """Raises RlrunError with everything that is wrong with the words."""
    plain = [word for word in words if "=" not in word]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    problems = _installed()
    if len(plain) != 3 or plain[0] not in KINDS:
        said = " ".join(words) or "convert"
        raise RlrunError([*problems, _usage("convert takes a kind, SOURCE and TARGET", said, USAGE)])
    kind, source, target = plain
    for key, value in settings.items():
        word = f"{key}={value}"
        if key in LAYOUT:
            hint = f"leave {word} out: a Megatron checkpoint loads into any layout"
            problems.append(_usage(f"a conversion has no {key}", word, hint))
        elif key != "dtype":
            problems.append(_usage(f"convert has no {key}", word, "the only setting is dtype"))
        elif value not in DTYPES:
            problems.append(_usage(f"dtype is {' or '.join(DTYPES)}", word, f"write dtype={DTYPES[0]}"))
        elif kind == "megatron-to-hf":
            hint = "leave it out; hf-to-hf changes the type afterwards"
            problems.append(_usage("megatron-to-hf keeps the type of the weights", word, hint))
    for flag, given in (("--origin", origin), ("--fill-missing-from", fill_from)):
        if given is not None and kind != "megatron-to-hf":
            problems.append(_usage(f"{flag} belongs to megatron-to-hf", flag, "leave it out"))
        elif given is not None and not _path(given).is_dir():
            problems.append(_missing(_path(given), flag))
    if not _path(source).is_dir():
        problems.append(_missing(_path(source), "SOURCE"))
    elif _path(source).resolve() == _path(target).resolve():
        problems.append(_usage("SOURCE and TARGET are the same folder", target, "choose another TARGET"))
    else:
        problems += refuse(_path(target))
    if problems:
        raise RlrunError(problems)
    more = [None if folder is None else _path(folder) for folder in (origin, fill_from)]
    return Request(kind, _path(source), _path(target), settings.get("dtype"), more[0], more[1], verify)


def _installed() -> list[Problem]:
    missing = []
    for package in ("torch", "safetensors", "megatron-core"):
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    hint = "on a CPU `make setup` in a checkout; on a CUDA machine `pip install 'rlrun[gpu]'`"
    summary = f"converting needs {', '.join(missing)}; this environment can only plan"
    return [Problem("engines-not-installed", summary, hint=hint)] if missing else []


def _path(word: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(word)))


def _usage(summary: str, word: str, hint: str) -> Problem:
    return Problem("bad-usage", summary, (Where("command line", word),), hint)


def _missing(folder: Path, what: str) -> Problem:
    hint = "give a folder; a model of the Hub is downloaded first, e.g. with `hf download`"
    return Problem("folder-not-found", f"{what}: there is no folder {folder}", hint=hint)


def notes(request: Request) -> list[str]:
    """What to tell before anything happens."""
    return [f"an earlier conversion was cut off: {folder} can be deleted" for folder in debris(request.target)]


def spec_of(folder: Path) -> ModelSpec:
    """The model of a Hugging Face checkpoint, its family by config.json's model_type. RlrunError when there is none."""
    by_type = {model_type: family.name for family in FAMILIES.values() for model_type in family.model_types}
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        found = next(iter(by_type))  # spec_from_directory says what is wrong with the file
    if found not in by_type:
        hint = f"convert a checkpoint of {', '.join(FAMILIES)}"
        raise RlrunError(Problem("model-unsupported", f"{folder}/config.json says model_type {found!r}", hint=hint))
    return spec_from_directory(str(folder), by_type[found])


def refuse_memory(spec: ModelSpec, itemsize: int, verify: bool) -> None:
    """RlrunError when a conversion of the model, in `itemsize` bytes a parameter, takes more memory than is free here:
    the weights and Megatron's copies of parts of them; to verify, two models in float32."""
    needed = spec.num_parameters * max(2 * itemsize, 8 if verify else 0)
    free = _available()
    if free is not None and needed > free:
        doing = "converting and verifying" if verify else "converting"
        summary = f"{doing} takes about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are available"
        less = " without --verify" if verify else " with dtype=bfloat16" if itemsize > 2 else ""
        hint = "convert on a machine with more memory" + (f", or{less}" if less else "")
        raise RlrunError(Problem("conversion-too-large", summary, hint=hint))


def _available() -> int | None:
    """Bytes of memory; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
