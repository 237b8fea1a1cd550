"""GPU counts -> slots, trainer ranks and engines. Arithmetic only; `rules/placement.py` has refused what cannot be."""

from __future__ import annotations

from typing import Any

from rlrun.plan.types import Slot


def slots_needed(placement: Any) -> int:
    """Slots of the run: trainer and engines share them when colocated, else each has its own."""
    trainer, rollout = placement.trainer.gpus, placement.rollout.gpus
    return max(trainer, rollout) if placement.mode == "colocated" else trainer + rollout


def slots(placement: Any) -> tuple[Slot, ...]:
    """The slots in use, numbered from 0 across nodes: node * gpus_per_node + index."""
    per_node = placement.gpus_per_node
    return tuple(Slot(i, i // per_node, i % per_node) for i in range(slots_needed(placement)))


def trainer_slots(placement: Any) -> tuple[int, ...]:
    """Slot of each trainer rank."""
    return tuple(range(placement.trainer.gpus))


def engine_slots(placement: Any) -> tuple[tuple[int, ...], ...]:
    """Slots of each engine; they begin after the trainer's when disaggregated."""
    first = 0 if placement.mode == "colocated" else placement.trainer.gpus
    size = placement.rollout.gpus_per_engine
    count = placement.rollout.gpus // size
    return tuple(tuple(range(first + i * size, first + (i + 1) * size)) for i in range(count))


def ports(first: int, num_engines: int) -> tuple[list[tuple[int, int]], int | None]:
    """(HTTP port, torch.distributed port) of each engine, and the router's port when there are several engines."""
    engines = [(first + 2 * i, first + 2 * i + 1) for i in range(num_engines)]
    return engines, first + 2 * num_engines if num_engines > 1 else None


def data_parallel(placement: Any) -> int:
    """Replicas of the trainer."""
    return placement.trainer.gpus // (placement.trainer.tp * placement.trainer.pp * placement.trainer.cp)


def divisors(number: int) -> list[int]:
    """Positive divisors, smallest first."""
    return [d for d in range(1, number + 1) if number % d == 0]


def one_of(numbers: list[int]) -> str:
    """`1, 2 or 4`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
