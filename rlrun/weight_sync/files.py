"""Where weights that travel by disk lie, and who writes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rlrun.plan.types import SyncPlan

FOLDER = "weight_sync"

CHANGES_FORMAT = "rlrun_changes"
"""`load_format` of requests that name a file of changes (`rlrun.backends.sglang.weight_changes`)."""


@dataclass(frozen=True)
class Files:
    """`folder` belongs to this run alone. `write(named, target)` makes a whole Hugging Face checkpoint of the tensors,
    each drawn once, and raises RunFailed without leaving anything when it cannot."""

    folder: str
    write: Callable[[Iterable[tuple[str, Tensor]], str], None]


def clean(plan: SyncPlan | None, name: str, run_dir: str) -> None:
    """Takes away what a run that broke has left in its folder."""
    if plan is not None and plan.disk_bytes:
        shutil.rmtree(folder_of(plan, name, run_dir), ignore_errors=True)


def folder_of(plan: SyncPlan, name: str, run_dir: str) -> str:
    """The folder of one run: inside the run's own, or inside the one that the plan names, where other runs
    and anything else may be: it is emptied and deleted as a whole."""
    if plan.directory is None:
        return os.path.join(run_dir, FOLDER)
    return os.path.join(plan.directory, f"{FOLDER}-{name}-{os.path.basename(os.path.normpath(run_dir))}")
