"""Who has the GPUs that trainer and engines share.

With `rollout.offload` the engines' weights and KV cache leave the GPUs while the trainer works, with `trainer.offload`
the trainer's state while the engines generate. The order of a push keeps the peak low, and no copy of the engines'
weights anywhere: all but the trainer's weights is parked, the engines make room for theirs, the push fills it, the
trainer's weights are parked, the KV cache comes back. A canary needs the trainer's weights and the KV cache at once,
so with one the last two change places.

Without either key nothing is moved, and every method here does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rlrun.plan.types import RunPlan


class Parks(Protocol):
    """The trainer's part; see `rlrun.backends.base.TrainBackend`."""

    def park(self, keep_weights: bool) -> float: ...
    def unpark(self) -> float: ...


class Releases(Protocol):
    """The engines' part; see `rlrun.runtime.fleet`."""

    def release(self) -> None: ...
    def resume_weights(self) -> None: ...
    def resume_cache(self) -> None: ...


class Turns:
    """`seconds` adds up what the moves of a step took."""

    def __init__(self, plan: RunPlan, trainer: Parks, engines: Releases | None):
        self._trainer, self._engines = trainer, engines
        self._parks = plan.train.offload
        self._releases = plan.rollout.offload and engines is not None
        self._trains = True  # as the parts start
        self.seconds = 0.0

    @property
    def taken(self) -> bool:
        """Whether anything is ever moved."""
        return self._parks or self._releases

    def train(self) -> None:
        """The GPUs are the trainer's. The engines must be idle."""
        if self._trains or not self.taken:
            return
        with self._timed():
            if self._releases and self._engines is not None:
                self._engines.release()
            if self._parks:
                self._trainer.unpark()
        self._trains = True

    def make_room(self) -> None:
        """Before a push: of the trainer only its weights stay, and the engines have room for theirs."""
        with self._timed():
            if self._parks:
                self._trainer.park(keep_weights=True)
            if self._releases and self._engines is not None:
                self._engines.resume_weights()

    def leave(self) -> None:
        """After a push: nothing of the trainer stays."""
        if self._parks:
            with self._timed():
                self._trainer.park(keep_weights=False)
        self._trains = False

    def serve(self) -> None:
        """After a push: the engines take all of their memory, and answer requests."""
        if self._releases and self._engines is not None:
            with self._timed():
                self._engines.resume_cache()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds += time.monotonic() - began
