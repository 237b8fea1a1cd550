"""Deterministic stand-ins for both engines, for unit tests of everything around them. Never used by a run.

The policy is one table of logits, [positions, vocabulary]: token t of a sequence is drawn from row t, whatever came
before. It can be sampled, scored and trained exactly, so the real loop, batching and losses learn on it in
milliseconds. A critic, when the plan has one, is a value for each position. They pass the same contract suite as the
real backends (tests/backends/contract.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import torch

from rlrun.algos.losses import Tokens, policy_loss
from rlrun.algos.values import value_loss
from rlrun.backends.base import Completion, EngineAddress, GenerateRequest, RankInfo, Rendezvous, TrainMetrics
from rlrun.data.types import TokenBatch, TrainBatch, ValueBatch
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


def _table_at(path: str | None, like: torch.Tensor) -> torch.Tensor:
    """A frozen model: the initial table, or another one for each path."""
    if path is None:
        return like.detach().clone()
    seed = int(hashlib.sha256(path.encode()).hexdigest()[:8], 16)
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype)


class FakeTrainer:
    """A TrainBackend of one rank that trains the table with plain gradient descent and the real loss."""

    def __init__(self, plan: RunPlan, engine: FakeEngine):
        self._plan, self._engine = plan, engine
        self._table = torch.zeros(engine.table.shape, dtype=torch.float64, requires_grad=True)
        self._frozen = {
            "reference": _table_at(plan.algo.reference_path, self._table),
            "teacher": _table_at(plan.algo.teacher.path if plan.algo.teacher else None, self._table),
        }
        self._steps = 0
        self._values = torch.zeros(engine.table.shape[0], dtype=torch.float64, requires_grad=True)  # by position
        self._value_steps = 0
        self._copied: tuple[str, dict] = ("", {})
        self.away: set[str] = set()

    def start(self, rendezvous: Rendezvous, model_dir: str) -> RankInfo:
        return RankInfo(rank=rendezvous.rank, dp=0, tp=0, pp=0, cp=0, reports=True)

    def _logprobs(self, tokens: np.ndarray, table: torch.Tensor, temperature: float) -> torch.Tensor:
        rows = torch.log_softmax(table[: len(tokens)] / temperature, dim=-1)
        values = rows.gather(1, torch.as_tensor(tokens)[:, None])[:, 0]
        return torch.cat([torch.zeros(1, dtype=values.dtype), values[1:]])

    def _entropy(self, tokens: np.ndarray, temperature: float) -> torch.Tensor:
        rows = torch.log_softmax(self._table[: len(tokens)] / temperature, dim=-1)
        return -(rows.exp() * rows).sum(dim=-1)

    def logprobs(self, batch: TokenBatch, model: str = "policy") -> list[np.ndarray]:
        self._require_here(*(("weights",) if model == "policy" else ()))
        table = {"policy": self._table, **self._frozen}[model]
        return [self._logprobs(t, table, batch.temperature).detach().numpy().astype(np.float32) for t in batch.tokens]

    def train_step(self, batch: TrainBatch) -> TrainMetrics:
        self._require_here()
        algo = self._plan.algo
        join = lambda arrays: torch.as_tensor(np.concatenate(arrays))  # noqa: E731
        tokens = Tokens(
            logprobs=torch.cat([self._logprobs(t, self._table, batch.temperature) for t in batch.tokens]),
            advantages=join(batch.advantages),
            loss_weights=join(batch.loss_weights),
            rollout_logprobs=join(batch.rollout_logprobs),
            lengths=torch.tensor([len(t) for t in batch.tokens]),
            old_logprobs=join(batch.old_logprobs) if batch.old_logprobs else None,
            ref_logprobs=join(batch.ref_logprobs) if batch.ref_logprobs else None,
            entropy=torch.cat([self._entropy(t, batch.temperature) for t in batch.tokens]),
        )
        loss, metrics = policy_loss(tokens, algo.loss)
        metrics["num_tokens"] = tokens.counts.sum()
        (gradient,) = torch.autograd.grad(loss, self._table)
        with torch.no_grad():
            self._table -= STEP_SIZE * algo.optimizer.lr * gradient
        self._steps += 1
        values = {name: float(value) for name, value in metrics.items()}
        return TrainMetrics({**values, "grad_norm": float(gradient.norm()), "lr": algo.optimizer.lr})

    def values(self, batch: TokenBatch) -> list[np.ndarray]:
        self._require_here()
        assert self._plan.critic is not None, "the plan has no critic"
        return [self._values_of(t).detach().numpy().astype(np.float32) for t in batch.tokens]

    def _values_of(self, tokens: np.ndarray) -> torch.Tensor:
        return torch.cat([torch.zeros(1, dtype=self._values.dtype), self._values[1 : len(tokens)]])

    def value_step(self, batch: ValueBatch) -> TrainMetrics:
        self._require_here()
        assert self._plan.critic is not None, "the plan has no critic"
        loss, metrics = value_loss(
            torch.cat([self._values_of(t) for t in batch.tokens]),
            *(torch.as_tensor(np.concatenate(a)) for a in (batch.old_values, batch.returns, batch.loss_weights)),
            value_clip=self._plan.critic.value_clip,
        )
        (gradient,) = torch.autograd.grad(loss, self._values)
        with torch.no_grad():
            self._values -= self._plan.critic.optimizer.lr * gradient
        self._value_steps += 1
        values = {name: float(value) for name, value in metrics.items()}
        return TrainMetrics({**values, "grad_norm": float(gradient.norm()), "lr": self._plan.critic.optimizer.lr})

    def park(self, keep_weights: bool) -> float:
        self.away |= {"rest"} if keep_weights else {"rest", "weights"}
        return 0.0

    def unpark(self, weights_only: bool = False) -> float:
        self.away -= {"weights"} if weights_only else {"weights", "rest"}
        return 0.0

    def memory(self) -> dict[str, float]:
        return {"host_used": 0.0, "host_rss": 0.0, "host_parked": 0.0}

    def _require_here(self, *parts: str) -> None:
        missing = self.away & set(parts or ("weights", "rest"))
        assert not missing, f"parked: {sorted(missing)}"

    def connect_engines(self, engines: Sequence[EngineAddress], run_dir: str) -> None:
        return None

    def publish(self, engines: Sequence[EngineAddress], version: int) -> dict[str, float]:
        self._require_here("weights")
        self._engine.table = self._table.detach().numpy().copy()
        self._engine.version = version
        return {"bytes": float(self._engine.table.nbytes), "seconds": 0.0}

    def save(self, directory: str) -> None:
        self.begin_save(directory)
        self.finish_save()

    def begin_save(self, directory: str) -> None:
        self._require_here()
        state = {"table": self._table.detach().clone(), "steps": self._steps}
        if self._plan.critic is not None:
            state |= {"values": self._values.detach().clone(), "value_steps": self._value_steps}
        self._copied = (directory, state)

    def save_done(self) -> bool:
        return True

    def finish_save(self) -> float:
        directory, state = self._copied
        torch.save(state, os.path.join(directory, "fake.pt"))
        return 0.0

    def load(self, directory: str) -> None:
        self._require_here()
        state = torch.load(os.path.join(directory, "fake.pt"))
        self._table = state["table"].requires_grad_()
        self._steps = state["steps"]
        if self._plan.critic is not None:
            if "values" not in state:
                raise RunFailed("trainer", f"the checkpoint in {directory} was saved without a critic")
            self._values = state["values"].requires_grad_()
            self._value_steps = state["value_steps"]

    def export_hf(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self.save(directory)

    def digest(self) -> dict[str, str]:
        self._require_here()
        weights = hashlib.sha256(self._table.detach().numpy().tobytes()).hexdigest()
        found = {"weights": weights, "optimizer": str(self._steps)}
        if self._plan.critic is not None:
            values = hashlib.sha256(self._values.detach().numpy().tobytes()).hexdigest()
            found |= {"critic_weights": values, "critic_optimizer": str(self._value_steps)}
        return found

    def close(self) -> None:
        return None
