"""What the tests of saving run on every rank: saves beside training, saves that fail, runs that die while saving."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron_jobs import share, started

from rlrun.backends.base import Rendezvous
from rlrun.backends.megatron import cpu, optimizer_state
from rlrun.backends.megatron.trainer import MegatronTrainer
from rlrun.data.types import TrainBatch, ValueBatch
from rlrun.errors import RunFailed
from rlrun.plan.types import RunPlan
from rlrun.runtime.checkpoint import CheckpointStore, RunState

WRITE = "write_preloaded_data"
GATE_S = 60.0


@contextmanager
def writing(instead: Callable[..., None]) -> Iterator[None]:
    """`instead(stock, *args)` in place of the function that writes one file."""
    stock = vars(FileSystemWriterAsync)[WRITE]

    def write(*args: Any, **kwargs: Any) -> None:
        instead(stock.__func__, *args, **kwargs)

    write.__wrapped__ = write
    setattr(FileSystemWriterAsync, WRITE, staticmethod(write))
    try:
        yield
    finally:
        setattr(FileSystemWriterAsync, WRITE, stock)


def save_at_once_and_beside(
    rendezvous: Rendezvous,
    plan: RunPlan,
    model_dir: str,
    at_once: str,
    beside: str,
    batches: list[TrainBatch],
) -> dict[str, Any]:
    """The state after one step, saved at once, and again beside two more steps: no file is written before these."""
    with started(rendezvous, plan, model_dir) as trainer:
        train(trainer, batches[0])
        trainer.save(at_once)
        saved = trainer.digest()
        gate = threading.Event()

        def late(stock: Any, *args: Any, **kwargs: Any) -> None:
            assert gate.wait(GATE_S), "nobody opened the gate"
            stock(*args, **kwargs)

        with writing(late):
            trainer.begin_save(beside)
            for batch in batches[1:3]:
                train(trainer, batch)
            moved, files, done = trainer.digest(), os.listdir(beside), trainer.save_done()
            dist.barrier()
            gate.set()
            seconds = trainer.finish_save()
        train(trainer, batches[3])
        return {
            "saved": saved,
            "moved": moved,
            "written_early": [f for f in files if f.endswith(".distcp")],
            "done_early": done,
            "seconds": seconds,
            "at_end": trainer.digest(),
        }


def save_in_pieces(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str, batch: TrainBatch, piece: int
) -> None:
    """The state after one step, with so many numbers gathered at once where they are gathered on the host."""
    with started(rendezvous, plan, model_dir) as trainer:
        train(trainer, batch)
        usual, optimizer_state.PIECE = optimizer_state.PIECE, piece
        try:
            trainer.save(directory)
        finally:
            optimizer_state.PIECE = usual


def load_and_save(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str, again: str, other: TrainBatch
) -> None:
    """Loads over the state that a step on `other` left, and saves what is there then beside another step."""
    with started(rendezvous, plan, model_dir) as trainer:
        train(trainer, other)
        trainer.load(directory)
        trainer.begin_save(again)
        train(trainer, other)
        trainer.finish_save()


def train(trainer: MegatronTrainer, batch: TrainBatch) -> None:
    """One step of the policy, and of the critic when there is one: any numbers do for that."""
    mine = share(batch, trainer.info.dp, trainer.plan.train.dp)
    if trainer.critic is not None:
        fields = (mine.tokens, mine.micro_batches, mine.loss_weights, mine.old_logprobs, mine.advantages)
        names = ("tokens", "micro_batches", "loss_weights", "old_values", "returns")
        trainer.value_step(ValueBatch(**dict(zip(names, fields, strict=True))))
    trainer.train_step(mine)


def failing_save(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str, beside: bool) -> str:
    """What a save says whose last rank finds the disk full."""

    def full(stock: Any, *args: Any, **kwargs: Any) -> None:
        if rendezvous.rank == rendezvous.world_size - 1:
            raise OSError(28, "No space left on device")
        stock(*args, **kwargs)

    with started(rendezvous, plan, model_dir) as trainer, writing(full):
        try:
            if beside:
                trainer.begin_save(directory)
                trainer.finish_save()
            else:
                trainer.save(directory)
        except RunFailed as error:
            return str(error)
    return ""


class Lead:
    """All ranks as the driver sees them, from rank 0; the others `follow`."""

    def __init__(self, trainer: MegatronTrainer):
        self._trainer = trainer

    def _all(self, method: str, *args: Any) -> Any:
        with cpu.shim():
            dist.broadcast_object_list([(method, args)], src=0)
        return getattr(self._trainer, method)(*args)

    def save(self, directory: str) -> None:
        self._all("save", directory)

    def begin_save(self, directory: str) -> None:
        self._all("begin_save", directory)

    def save_done(self) -> bool:
        return self._trainer.save_done()

    def finish_save(self) -> float:
        return self._all("finish_save")

    def load(self, directory: str) -> None:
        self._all("load", directory)

    def export_hf(self, directory: str) -> None:
        self._all("export_hf", directory)

    def digest(self) -> list[dict[str, str]]:
        return [self._all("digest")]

    def train(self, batch: TrainBatch) -> None:
        self._all("train_step", batch)

    def leave(self) -> None:
        with cpu.shim():
            dist.broadcast_object_list([None], src=0)


def follow(trainer: MegatronTrainer, after_save: Callable[[int], None] = lambda saves: None) -> None:
    """Does what `Lead` says. `after_save` is told how many saves there have been."""
    saves = 0
    while True:
        call: list[Any] = [None]
        with cpu.shim():
            dist.broadcast_object_list(call, src=0)
        if call[0] is None:
            return
        method, args = call[0]
        getattr(trainer, method)(*args)
        if method == "save":
            saves += 1
            after_save(saves)


def run_that_dies(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, run_dir: str, batches: list[TrainBatch], beside: bool
) -> None:
    """A run that saves its first step, and is killed in the middle of writing its second: every rank has half a file on
    the disk then."""

    second = threading.Event()

    def half(stock: Any, transforms: Any, index: int, bucket: Any, *args: Any, **kwargs: Any) -> None:
        if not second.is_set():
            stock(transforms, index, bucket, *args, **kwargs)
            return
        whole = f"{bucket[0]}.whole"
        stock(transforms, index, (whole, *bucket[1:]), *args, **kwargs)
        with open(whole, "rb") as source, open(bucket[0], "wb") as target:
            target.write(source.read()[: os.path.getsize(whole) // 2])
        os.remove(whole)
        os.kill(os.getpid(), signal.SIGKILL)

    with started(rendezvous, plan, model_dir) as trainer, writing(half):
        if rendezvous.rank:
            follow(trainer, lambda saves: second.set() if saves == 1 else None)
            return
        lead, store = Lead(trainer), CheckpointStore(run_dir, keep=1, digest=True)
        lead.train(batches[0])
        store.save(state(1), lead)
        second.set()
        lead.train(batches[1])
        (store.begin if beside else store.save)(state(2), lead)
        store.finish(lead)


def state(step: int) -> RunState:
    return RunState(step, step, step, {"epoch": 0}, "0" * 12, None)


def run_that_goes_on(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, run_dir: str, batches: list[TrainBatch]
) -> dict[str, Any]:
    """Resumes from the newest checkpoint, and does and saves the step after it. `loaded`: rank 0's digest."""
    with started(rendezvous, plan, model_dir) as trainer:
        if rendezvous.rank:
            follow(trainer)
            return {}
        lead, store = Lead(trainer), CheckpointStore(run_dir, keep=1, digest=True)
        store.clean()
        found = store.latest()
        assert found is not None
        path, saved = found
        lead.load(os.path.join(path, "megatron"))
        loaded = lead.digest()
        lead.train(batches[saved.step])
        store.save(state(saved.step + 1), lead)
        lead.leave()
        return {"step": saved.step, "loaded": loaded, "steps": store.steps()}


def uninterrupted(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batches: list[TrainBatch]
) -> list[dict[str, str]]:
    """Digests after each step."""
    found = []
    with started(rendezvous, plan, model_dir) as trainer:
        for batch in batches:
            trainer.train_step(batch)
            found.append(trainer.digest())
    return found
