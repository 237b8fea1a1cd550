"""The reference transformers, in a process of its own: tiny checkpoints of every family with the logits and gradients
that belong to them, and the logits of any checkpoint folder.

Two releases of transformers do not go into one process, so nothing here imports the other one. It lies in .reference
(requirements/reference.txt); everything else comes from this environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from family_fixtures import FIXTURES, Fixture
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REFERENCE = ROOT / ".reference"
GRADIENT = "gradient."


@dataclass(frozen=True)
class Reference:
    """A tiny checkpoint on disk and what transformers computes with it; the keys are explained in hf_reference.py."""

    name: str
    checkpoint: str

    @property
    def fixture(self) -> Fixture:
        return FIXTURES[self.name]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return load_file(f"{self.checkpoint}.reference.safetensors")

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Everything that the checkpoint holds, with the names and shapes that it has on disk."""
        return load_file(Path(self.checkpoint) / "model.safetensors")

    @property
    def sequences(self) -> list[np.ndarray]:
        """Token ids, int64, of two sequences of different lengths."""
        return [self.tensors[f"tokens_{i}"].numpy() for i in range(2)]

    @property
    def loss_weights(self) -> list[np.ndarray]:
        return [self.tensors[f"weights_{i}"].numpy() for i in range(2)]

    def logits(self, variant: str = "") -> list[Tensor]:
        """[T, V] of each sequence. `variant` "hf_eps.": latent norms as the transformers class has them."""
        return [self.tensors[f"{variant}logits_{i}"] for i in range(2)]

    def logprobs(self, variant: str = "") -> list[Tensor]:
        """[T] of each sequence, 0 for the first token."""
        return [self.tensors[f"{variant}logprobs_{i}"] for i in range(2)]

    def gradients(self, variant: str = "") -> dict[str, Tensor]:
        """Tensor of the checkpoint -> gradient of the loss. Not there: vision tower, draft layer, indexer, buffers."""
        prefix = variant + GRADIENT
        return {name.removeprefix(prefix): x for name, x in self.tensors.items() if name.startswith(prefix)}


def make_references(folder: Path, names: Iterable[str] = tuple(FIXTURES)) -> dict[str, Reference]:
    """Makes the fixtures `names` in `folder`, all in one process, which takes seconds."""
    names = list(names)
    _run("hf_reference.py", str(folder), *names)
    return {name: Reference(name, str(folder / name)) for name in names}


def hf_logits(checkpoint: str | Path, sequences: Sequence[np.ndarray]) -> list[Tensor]:
    """Logits [T, V], float32, of each sequence of token ids, with the eps of config.json in every norm. Fails when
    transformers misses a tensor in the folder, finds one of another shape, or one that it does not know."""
    return hf_logits_of([(checkpoint, sequences)])[0]


def hf_logits_of(jobs: Sequence[tuple[str | Path, Sequence[np.ndarray]]]) -> list[list[Tensor]]:
    """`hf_logits` of several (checkpoint, sequences), in one process: starting one takes longer than a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        todo, out = Path(folder) / "jobs.json", Path(folder) / "logits.safetensors"
        plain = [(str(checkpoint), [np.asarray(s).tolist() for s in sequences]) for checkpoint, sequences in jobs]
        todo.write_text(json.dumps(plain))
        _run("hf_logits.py", str(todo), str(out))
        found = load_file(out)
    return [[found[f"logits_{j}_{i}"] for i in range(len(sequences))] for j, (_, sequences) in enumerate(jobs)]


def _run(script: str, *arguments: str) -> None:
    """Runs a script of this folder on the reference transformers; an AssertionError with what it said if it fails."""
    assert (REFERENCE / ".ready").is_file(), f"{REFERENCE} is missing or incomplete: run `make setup`"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(REFERENCE), str(ROOT)]),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # `make setup` compiles nothing there, so the first start does
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{script} failed:\n{done.stderr[-4000:]}"
