"""The independent critic: Hugging Face's trunk, a torch linear head, autograd and AdamW, one sample at a time."""

from __future__ import annotations

import math

import numpy as np
import torch
from megatron_plans import SPEC
from megatron_reference import learning_rate, load

from rlrun.data.types import ValueBatch
from rlrun.plan.types import CriticPlan


class Reference(torch.nn.Module):
    def __init__(self, directory: str, weight: np.ndarray):
        super().__init__()
        self.trunk = load(directory).model
        self.head = torch.nn.Linear(SPEC.hidden_size, 1)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(weight))
            self.head.bias.zero_()

    def values(self, tokens: np.ndarray) -> torch.Tensor:
        """[T]: entry t from the tokens before t, entry 0 is 0."""
        hidden = self.trunk(input_ids=torch.from_numpy(np.asarray(tokens))[None]).last_hidden_state[0]
        return torch.cat([hidden.new_zeros(1), self.head(hidden[:-1])[:, 0]])

    def loss(self, batch: ValueBatch, clip: float | None) -> tuple[torch.Tensor, dict[str, float]]:
        total, clipped_weight, count = torch.zeros(()), 0.0, 0
        for tokens, weights, old, target in zip(
            batch.tokens, batch.loss_weights, batch.old_values, batch.returns, strict=True
        ):
            values = self.values(tokens)
            for t in np.flatnonzero(weights):
                free = (values[t] - float(target[t])) ** 2
                worse = free
                if clip is not None:
                    held = values[t].clamp(float(old[t]) - clip, float(old[t]) + clip)
                    worse = (held - float(target[t])) ** 2
                total = total + float(weights[t]) * torch.maximum(free, worse)
                clipped_weight += float(weights[t]) * bool(worse > free)
                count += 1
        return total, {"value_loss": float(total), "value_clip_fraction": clipped_weight, "num_tokens": float(count)}


def head_weight(seed: int = 1234) -> np.ndarray:
    return (0.02 * torch.randn(1, SPEC.hidden_size, generator=torch.Generator().manual_seed(seed))).numpy()


def make_batch(directory: str, seed: int = 0) -> ValueBatch:
    """One optimizer step of all data-parallel ranks: ragged samples, masked prompts, old values some of which are
    further away than the clip."""
    rng = np.random.default_rng(seed)
    model = Reference(directory, head_weight())
    tokens = [rng.integers(0, SPEC.vocab_size, rng.integers(3, 20)) for _ in range(8)]
    with torch.no_grad():
        exact = [model.values(t).numpy() for t in tokens]
    masks = [np.arange(len(t)) >= 1 + i % 2 for i, t in enumerate(tokens)]
    total = sum(mask.sum() for mask in masks)
    return ValueBatch(
        tokens=tokens,
        micro_batches=[[0, 1, 2], [3, 4], [5, 6, 7]],
        temperature=0.5,  # of no account
        loss_weights=[(mask / total).astype(np.float32) for mask in masks],
        old_values=[(e + rng.normal(0, 0.2, len(e))).astype(np.float32) * m for e, m in zip(exact, masks, strict=True)],
        returns=[rng.normal(0.5, 1, len(m)).astype(np.float32) * m for m in masks],
    )


def train(model: Reference, batches: list[ValueBatch], plan: CriticPlan) -> list[dict[str, float]]:
    """Metrics of each step; `model` is left as it is after them."""
    o = plan.optimizer
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": o.weight_decay},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)
    history = []
    for k, batch in enumerate(batches):
        optimizer.zero_grad()
        loss, metrics = model.loss(batch, plan.value_clip)
        loss.backward()
        metrics["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(parameters, o.clip_grad or math.inf))
        metrics["lr"] = learning_rate(o, k)
        for group in optimizer.param_groups:
            group["lr"] = metrics["lr"]
        optimizer.step()
        history.append(metrics)
    return history
