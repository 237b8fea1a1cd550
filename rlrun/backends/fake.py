"""Deterministic stand-ins for both engines, for unit tests of everything around them. Never used by a run.

The policy is one table of logits, [positions, vocabulary]: token t of a sequence is drawn from row t, whatever came
before. It can be sampled, scored and trained exactly, so the real loop, batching and losses learn on it in
milliseconds. They pass the same contract suite as the real backends (tests/backends/contract.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import torch

from rlrun.algos.losses import policy_loss
from rlrun.backends.base import Completion, EngineAddress, GenerateRequest, RankInfo, Rendezvous, TrainMetrics
from rlrun.data.types import TokenBatch, TrainBatch
from rlrun.errors import RunFailed
from rlrun.plan.types import RunPlan

EOS = 2
STEP_SIZE = 20.0
"""Times the learning rate: plain gradient descent on a table of logits, where the real trainer has AdamW."""


class FakeEngine:
    """A RolloutBackend. `table` and `version` are what was last published to it."""

    def __init__(self, positions: int, vocab_size: int):
        self.table = np.zeros((positions, vocab_size))
        self.version = -1
        self.fail_next = 0
        self._unseeded = np.random.default_rng(0)

    async def generate(self, request: GenerateRequest) -> list[Completion]:
        if self.fail_next:
            self.fail_next -= 1
            raise RunFailed("engine 0", "failed as told")
        return [self._one(request, seed) for seed in request.seeds]

    def _one(self, request: GenerateRequest, seed: int | None) -> Completion:
        rng = self._unseeded if seed is None else np.random.default_rng(seed)
        ids: list[int] = []
        logprobs: list[float] = []
        reason = "length"
        for position in range(len(request.token_ids), len(request.token_ids) + request.max_new_tokens):
            row = _log_softmax(self.table[position] / (request.temperature or 1.0))
            chances = _cut(np.exp(row), request.top_p, request.top_k)
            token = int(row.argmax()) if request.temperature == 0 else int(rng.choice(len(row), p=chances))
            ids.append(token)
            logprobs.append(float(row[token]))
            if token == EOS:
                reason = "stop"
                break
        text = "".join(chr(ord("a") + t % 26) for t in ids if t != EOS)
        return Completion(tuple(ids), tuple(logprobs), reason, self.version, text)

    async def score(self, token_ids: Sequence[int], engine: int) -> list[float]:
        return [float(_log_softmax(self.table[t])[token_ids[t]]) for t in range(1, len(token_ids))]

    async def versions(self) -> list[int]:
        return [self.version]

    async def close(self) -> None:
        return None


def _cut(chances: np.ndarray, top_p: float, top_k: int) -> np.ndarray:
    """The `top_k` most probable tokens, of those the first ones that have `top_p` together, renormalised."""
    order = np.argsort(-chances, kind="stable")
    before = np.cumsum(chances[order]) - chances[order]
    keep = (before <= top_p) & ((np.arange(len(order)) < top_k) | (top_k == -1))
    cut = np.zeros_like(chances)
    cut[order[keep]] = chances[order[keep]]
    return cut / cut.sum()


def _log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


class FakeTrainer:
    """A TrainBackend of one rank that trains the table with plain gradient descent and the real loss."""

    def __init__(self, plan: RunPlan, engine: FakeEngine):
        self._plan, self._engine = plan, engine
        self._table = torch.zeros(engine.table.shape, dtype=torch.float64, requires_grad=True)
        self._reference = self._table.detach().clone()
        self._steps = 0

    def start(self, rendezvous: Rendezvous, model_dir: str) -> RankInfo:
        return RankInfo(rank=rendezvous.rank, dp=0, tp=0, pp=0, cp=0, reports=True)

    def _logprobs(self, tokens: np.ndarray, table: torch.Tensor, temperature: float) -> torch.Tensor:
        rows = torch.log_softmax(table[: len(tokens)] / temperature, dim=-1)
        values = rows.gather(1, torch.as_tensor(tokens)[:, None])[:, 0]
        return torch.cat([torch.zeros(1, dtype=values.dtype), values[1:]])

    def logprobs(self, batch: TokenBatch, model: str = "policy") -> list[np.ndarray]:
        table = {"policy": self._table, "reference": self._reference}[model]
        return [self._logprobs(t, table, batch.temperature).detach().numpy().astype(np.float32) for t in batch.tokens]

    def train_step(self, batch: TrainBatch) -> TrainMetrics:
        algo = self._plan.algo
        join = lambda arrays: torch.as_tensor(np.concatenate(arrays))  # noqa: E731
        loss, metrics = policy_loss(
            torch.cat([self._logprobs(t, self._table, batch.temperature) for t in batch.tokens]),
            join(batch.old_logprobs),
            join(batch.advantages),
            join(batch.loss_weights),
            join(batch.ref_logprobs) if batch.ref_logprobs else None,
            join(batch.rollout_logprobs),
            clip_low=algo.clip_low,
            clip_high=algo.clip_high,
            kl_coef=algo.kl_coef,
            kl_estimator=algo.kl_estimator,
        )
        (gradient,) = torch.autograd.grad(loss, self._table)
        with torch.no_grad():
            self._table -= STEP_SIZE * algo.optimizer.lr * gradient
        self._steps += 1
        values = {name: float(value) for name, value in metrics.items()}
        return TrainMetrics({**values, "grad_norm": float(gradient.norm()), "lr": algo.optimizer.lr, "entropy": 0.0})

    def connect_engines(self, engines: Sequence[EngineAddress]) -> None:
        return None

    def publish(self, engines: Sequence[EngineAddress], version: int) -> dict[str, float]:
        self._engine.table = self._table.detach().numpy().copy()
        self._engine.version = version
        return {"bytes": float(self._engine.table.nbytes), "seconds": 0.0}

    def save(self, directory: str) -> None:
        torch.save({"table": self._table.detach(), "steps": self._steps}, os.path.join(directory, "fake.pt"))

    def load(self, directory: str) -> None:
        state = torch.load(os.path.join(directory, "fake.pt"))
        self._table = state["table"].requires_grad_()
        self._steps = state["steps"]

    def export_hf(self, directory: str) -> None:
        os.makedirs(directory)
        self.save(directory)

    def digest(self) -> dict[str, str]:
        weights = hashlib.sha256(self._table.detach().numpy().tobytes()).hexdigest()
        return {"weights": weights, "optimizer": str(self._steps)}

    def close(self) -> None:
        return None
