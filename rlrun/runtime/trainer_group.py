"""All trainer ranks as one object. Batches come one a data-parallel rank; every rank of that dp coordinate gets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlrun.backends.base import EngineAddress, RankInfo, TrainMetrics
from rlrun.data.types import TokenBatch, TrainBatch, ValueBatch
from rlrun.plan.types import TimeoutsPlan
from rlrun.runtime.supervise import Supervisor


class TrainerGroup:
    def __init__(
        self, actors: Sequence[Any], infos: Sequence[RankInfo], supervisor: Supervisor, timeouts: TimeoutsPlan
    ):
        self._actors, self._infos = list(actors), list(infos)
        self._supervisor, self._timeouts = supervisor, timeouts
        self._engines: list[EngineAddress] = []

    def _call(self, what: str, deadline_s: float, call: Callable[[Any, RankInfo], Any]) -> list[Any]:
        calls = [(f"trainer rank {i.rank}", call(a, i)) for a, i in zip(self._actors, self._infos, strict=True)]
        return self._supervisor.wait_all(calls, what, deadline_s)

    def _put(self, batches: Sequence[Any]) -> list[Any]:
        import ray

        return [ray.put(batch) for batch in batches]

    def logprobs(self, batches: Sequence[TokenBatch], model: str = "policy") -> list[list[np.ndarray]]:
        """Log-probs [dp][sample] of each data-parallel rank's batch, from the rank that reports."""
        refs = self._put(batches)
        results = self._call(
            f"the log-probs of the {model} model",
            self._timeouts.train_s,
            lambda actor, info: actor.logprobs.remote(refs[info.dp], model),
        )
        return self._reported(results, len(batches))

    def _reported(self, results: Sequence[Any], dp: int) -> list[Any]:
        by_dp = {info.dp: result for info, result in zip(self._infos, results, strict=True) if info.reports}
        return [by_dp[i] for i in range(dp)]

    def values(self, batches: Sequence[TokenBatch]) -> list[list[np.ndarray]]:
        """The critic's values, as `logprobs` gives log-probs."""
        refs = self._put(batches)
        results = self._call(
            "the critic's values", self._timeouts.train_s, lambda actor, info: actor.values.remote(refs[info.dp])
        )
        return self._reported(results, len(batches))

    def value_step(self, batches: Sequence[ValueBatch]) -> TrainMetrics:
        refs = self._put(batches)
        results = self._call(
            "an optimizer step of the critic",
            self._timeouts.train_s,
            lambda actor, info: actor.value_step.remote(refs[info.dp]),
        )
        return results[0]

    def train_step(self, batches: Sequence[TrainBatch]) -> TrainMetrics:
        refs = self._put(batches)
        results = self._call(
            "an optimizer step", self._timeouts.train_s, lambda actor, info: actor.train_step.remote(refs[info.dp])
        )
        return results[0]

    def connect_engines(self, engines: Sequence[EngineAddress], run_dir: str) -> None:
        self._engines = list(engines)
        self._call(
            "connecting to the engines",
            self._timeouts.sync_s,
            lambda a, _: a.connect_engines.remote(self._engines, run_dir),
        )

    def publish(self, version: int) -> dict[str, float]:
        results = self._call(
            f"the weight sync of version {version}",
            self._timeouts.sync_s,
            lambda a, _: a.publish.remote(self._engines, version),
        )
        return results[0]

    def park(self, keep_weights: bool) -> float:
        """Seconds that the slowest rank took."""
        deadline = self._timeouts.sync_s
        return max(self._call("parking the trainer", deadline, lambda a, _: a.park.remote(keep_weights)))

    def unpark(self, weights_only: bool = False) -> float:
        """Seconds that the slowest rank took."""
        deadline = self._timeouts.sync_s
        return max(self._call("unparking the trainer", deadline, lambda a, _: a.unpark.remote(weights_only)))

    def memory(self) -> list[dict[str, float]]:
        """Of every rank."""
        return self._call("measuring memory", self._timeouts.sync_s, lambda a, _: a.memory.remote())

    def save(self, directory: str) -> None:
        self._call("saving a checkpoint", self._timeouts.save_s, lambda a, _: a.save.remote(directory))

    def begin_save(self, directory: str) -> None:
        self._call("copying a checkpoint", self._timeouts.save_s, lambda a, _: a.begin_save.remote(directory))

    def save_done(self) -> bool:
        """Whether every rank has written its files of the checkpoint that was begun."""
        return all(self._call("asking about a checkpoint", self._timeouts.save_s, lambda a, _: a.save_done.remote()))

    def finish_save(self) -> float:
        """Seconds that the slowest rank wrote."""
        return self._call("completing a checkpoint", self._timeouts.save_s, lambda a, _: a.finish_save.remote())[0]

    def load(self, directory: str) -> None:
        self._call("loading a checkpoint", self._timeouts.save_s, lambda a, _: a.load.remote(directory))

    def export_hf(self, directory: str) -> None:
        self._call("the Hugging Face export", self._timeouts.save_s, lambda a, _: a.export_hf.remote(directory))

    def digest(self) -> list[dict[str, str]]:
        return self._call("hashing the state", self._timeouts.save_s, lambda a, _: a.digest.remote())
