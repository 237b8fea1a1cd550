"""The independent reference: Hugging Face's Qwen3, torch autograd and torch AdamW, one sample at a time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from megatron_plans import SPEC

from rlrun.algos.losses import Tokens, policy_loss
from rlrun.backends.sglang.cpu import install_torchvision_ops
from rlrun.data.types import TrainBatch
from rlrun.plan.types import AlgoPlan, ModelSpec, OptimizerPlan

install_torchvision_ops()
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from transformers.utils import logging as hf_logging  # noqa: E402

hf_logging.disable_progress_bar()

TEMPERATURE = 0.7


def make_checkpoint(directory: Path, tied: bool, spec: ModelSpec = SPEC, seed: int = 7) -> str:
    """Weights far larger than an initialisation, norms away from 1: mistakes then show in the first digits."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.ffn_hidden_size,
        rms_norm_eps=spec.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        max_position_embeddings=spec.max_position_embeddings,
        tie_word_embeddings=tied,
        initializer_range=0.15,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}\n")
    return str(directory)


def load(directory: str) -> Qwen3ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def token_logprobs(model: Qwen3ForCausalLM, tokens: np.ndarray, temperature: float) -> torch.Tensor:
    ids = torch.from_numpy(np.asarray(tokens))[None]
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, dim=-1)
    return torch.cat([logprobs.new_zeros(1), logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0]])


def entropies(model: Qwen3ForCausalLM, tokens: np.ndarray, temperature: float) -> torch.Tensor:
    """Entropy of the distribution each token was drawn from, [T], entry 0 is 0."""
    ids = torch.from_numpy(np.asarray(tokens))[None]
    logits = model(input_ids=ids).logits[0].float() / temperature
    values = torch.distributions.Categorical(logits=logits).entropy()
    return torch.cat([values.new_zeros(1), values[:-1]])


def make_batch(directory: str, seed: int = 0, num_samples: int = 8) -> TrainBatch:
    """One optimizer step of all data-parallel ranks: ragged samples, masked prompts, off-policy old log-probs (some
    ratios are clipped) and a reference that differs."""
    rng = np.random.default_rng(seed)
    model = load(directory)
    tokens = [rng.integers(0, SPEC.vocab_size, rng.integers(3, 20)) for _ in range(num_samples)]
    with torch.no_grad():
        exact = [token_logprobs(model, t, TEMPERATURE).numpy() for t in tokens]
    masks = [np.arange(len(t)) >= 1 + i % 2 for i, t in enumerate(tokens)]
    total = sum(mask.sum() for mask in masks)

    def noisy(scale: float) -> list[np.ndarray]:
        return [(e + rng.normal(0, scale, len(e))).astype(np.float32) * m for e, m in zip(exact, masks, strict=True)]

    return TrainBatch(
        tokens=tokens,
        micro_batches=[[0, 1, 2], [3, 4], [5, 6, 7]] if num_samples == 8 else [list(range(num_samples))],
        temperature=TEMPERATURE,
        loss_weights=[(mask / total).astype(np.float32) for mask in masks],
        advantages=[(m * rng.normal()).astype(np.float32) for m in masks],
        old_logprobs=noisy(0.2),
        ref_logprobs=noisy(0.3),
        rollout_logprobs=noisy(0.05),
    )


def loss_and_metrics(
    model: Qwen3ForCausalLM, batch: TrainBatch, algo: AlgoPlan
) -> tuple[torch.Tensor, dict[str, float]]:
    def join(arrays: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays).astype(np.float32))

    logprobs = torch.cat([token_logprobs(model, t, batch.temperature) for t in batch.tokens])
    tokens = Tokens(
        logprobs=logprobs,
        advantages=join(batch.advantages),
        loss_weights=join(batch.loss_weights),
        rollout_logprobs=join(batch.rollout_logprobs),
        lengths=torch.tensor([len(t) for t in batch.tokens]),
        old_logprobs=join(batch.old_logprobs) if batch.old_logprobs else None,
        ref_logprobs=join(batch.ref_logprobs) if algo.loss.kl_coef > 0 else None,
        entropy=torch.cat([entropies(model, t, batch.temperature) for t in batch.tokens]),
    )
    loss, metrics = policy_loss(tokens, algo.loss)
    values = {name: float(value) for name, value in metrics.items()}
    values["num_tokens"] = float((join(batch.loss_weights) != 0).sum())
    return loss, values


def learning_rate(plan: OptimizerPlan, k: int) -> float:
    """Closed form of step k = 0, 1, ..."""
    warmup, total = plan.warmup_steps, plan.total_steps
    if k < warmup:
        return plan.lr * (k + 1) / (warmup + 1)
    r = min(1.0, (k - warmup) / (total - warmup))
    if plan.schedule == "constant":
        return plan.lr
    shape = 1 - r if plan.schedule == "linear" else (1 + math.cos(math.pi * r)) / 2
    return plan.min_lr + (plan.lr - plan.min_lr) * shape


def train(
    directory: str, batches: list[TrainBatch], algo: AlgoPlan
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of each step and the weights at the end, by torch.optim.AdamW and clip_grad_norm_."""
    model, plan = load(directory), algo.optimizer
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.lr, betas=(plan.beta1, plan.beta2), eps=plan.eps)
    history = []
    for k, batch in enumerate(batches):
        optimizer.zero_grad()
        loss, metrics = loss_and_metrics(model, batch, algo)
        loss.backward()
        limit = plan.clip_grad or math.inf
        metrics["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))
        metrics["lr"] = learning_rate(plan, k)
        for group in optimizer.param_groups:
            group["lr"] = metrics["lr"]
        optimizer.step()
        history.append(metrics)
    return history, {name: p.detach().clone() for name, p in model.named_parameters()}
