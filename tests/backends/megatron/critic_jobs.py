"""What the critic's tests run on every rank; `megatron_jobs` offers them to the pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from megatron_jobs import share, started

from rlrun.backends.base import Rendezvous
from rlrun.backends.megatron.trainer import MegatronTrainer
from rlrun.data.types import ValueBatch
from rlrun.plan.types import RunPlan


def trunk(trainer: MegatronTrainer) -> dict[str, np.ndarray]:
    """The critic's weights under their Hugging Face names, on rank 0; the head is not among them."""
    from rlrun.backends.megatron import cpu, mapping

    headless = replace(trainer.plan.model.spec, tied_embeddings=True)
    assert trainer.critic is not None
    with cpu.shim():
        return {n: t.float().cpu().numpy() for n, t in mapping.export_weights(trainer.critic.model, headless)}


def head(trainer: MegatronTrainer) -> tuple[np.ndarray, float] | None:
    """Weight and bias, on the ranks of the last stage."""
    from rlrun.backends.megatron.mapping import unwrap

    assert trainer.critic is not None
    model = unwrap(trainer.critic.model)
    if not model.post_process:
        return None
    layer = model.output_layer
    return layer.weight.detach().float().numpy().copy(), float(layer.bias.detach())


def critic_train(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batches: list[ValueBatch]) -> dict[str, Any]:
    """Values before, metrics of every step, weights after; and whether the policy is what it was."""
    with started(rendezvous, plan, model_dir) as trainer:
        dp = trainer.info.dp
        first, policy = share(batches[0], dp, plan.train.dp), trainer.digest()
        result: dict[str, Any] = {"info": trainer.info, "head_before": head(trainer), "before": trunk(trainer)}
        result["values"] = trainer.values(first)
        result["metrics"] = [trainer.value_step(share(b, dp, plan.train.dp)).values for b in batches]
        after = trainer.digest()
        result["policy_unchanged"] = all(policy[part] == after[part] for part in ("weights", "optimizer", "lr"))
        return result | {"after": trunk(trainer), "head": head(trainer)}


def critic_gradients(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batch: ValueBatch) -> dict[str, Any]:
    from rlrun.backends.megatron import cpu

    with started(rendezvous, plan, model_dir) as trainer, cpu.shim():
        assert trainer.critic is not None
        trainer.critic.model.zero_grad_buffer()
        micro_batches = trainer._micro_batches(share(batch, trainer.info.dp, plan.train.dp), train=True)
        metrics = trainer.critic.gradient(micro_batches)
        for parameter in trainer.critic.model.parameters():
            parameter.data.copy_(parameter.main_grad)
        return {"metrics": metrics, "gradients": trunk(trainer), "head": head(trainer)}


def critic_save_and_go_on(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str, batches: list[ValueBatch]
) -> dict[str, Any]:
    with started(rendezvous, plan, model_dir) as trainer:
        dp = plan.train.dp
        trainer.value_step(share(batches[0], trainer.info.dp, dp))
        trainer.save(directory)
        return {"at_save": trainer.digest(), **_go_on(trainer, batches[1:])}


def critic_load_and_go_on(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str, batches: list[ValueBatch]
) -> dict[str, Any]:
    """First trains on something else, so that loading has to overwrite a used state."""
    with started(rendezvous, plan, model_dir) as trainer:
        trainer.value_step(share(batches[0], trainer.info.dp, plan.train.dp))
        trainer.load(directory)
        return {"at_load": trainer.digest(), **_go_on(trainer, batches)}


def _go_on(trainer: MegatronTrainer, batches: list[ValueBatch]) -> dict[str, Any]:
    dp = trainer.plan.train.dp
    metrics = [trainer.value_step(share(b, trainer.info.dp, dp)).values for b in batches]
    return {"metrics": metrics, "at_end": trainer.digest(), "weights": trunk(trainer), "head": head(trainer)}


def critic_contract(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str) -> None:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent.parent))
    from contract import check_critic

    with started(rendezvous, plan, model_dir) as trainer:
        check_critic(trainer, directory, plan.model.spec.vocab_size)


def critic_nan_step(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batch: ValueBatch) -> tuple[str, bool]:
    """What a return that is not finite raises, and whether the weights stayed."""
    with started(rendezvous, plan, model_dir) as trainer:
        before = trainer.digest()["critic_weights"]
        try:
            trainer.value_step(replace(batch, returns=[r + np.float32("inf") for r in batch.returns]))
        except Exception as error:
            return f"{type(error).__name__}: {error}", trainer.digest()["critic_weights"] == before
        return "", False
