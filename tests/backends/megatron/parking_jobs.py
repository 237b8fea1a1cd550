"""What the parking tests run on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlrun.backends.base import Rendezvous
from rlrun.backends.megatron import parking
from rlrun.backends.megatron.trainer import MegatronTrainer
from rlrun.data.types import TrainBatch, ValueBatch
from rlrun.plan.types import RunPlan


def turns(
    rendezvous: Rendezvous,
    plan: RunPlan,
    model_dir: str,
    batches: list[TrainBatch],
    values: list[ValueBatch],
    parks: bool,
    directory: str | None = None,
) -> dict[str, Any]:
    """Steps of the policy, and of the critic when `values` are given; with `parks` everything is parked after each, as
    in a run: all but the policy's weights, then those. `directory`: saved before the last step, and loaded after it."""
    from megatron_jobs import exported, share, started

    with started(rendezvous, plan, model_dir) as trainer:
        dp, found = plan.train.dp, {"left": [], "weights": [], "metrics": [], "logprobs": [], "refused": []}
        for i, batch in enumerate(batches):
            mine = share(batch, trainer.info.dp, dp)
            if directory is not None and i == len(batches) - 1:
                trainer.save(directory)
            found["logprobs"].append(trainer.logprobs(mine))
            if plan.algo.uses_reference:
                found["logprobs"].append(trainer.logprobs(mine, "reference"))
            if values:
                found["metrics"].append(trainer.value_step(share(values[i], trainer.info.dp, dp)).values)
            found["metrics"].append(trainer.train_step(mine).values)
            if parks:
                trainer.park(keep_weights=True)
                found["left"].append(_bytes(trainer))
                found["refused"].append(_refusal(trainer, mine))
            found["weights"].append(exported(trainer))
            if parks:
                trainer.park(keep_weights=False)
                found["left"].append(_bytes(trainer))
                found["parked"] = trainer.memory()["host_parked"]
                trainer.unpark()
        if directory is not None:
            trainer.load(directory)
        found["digest"] = trainer.digest()
        found["whole"] = _bytes(trainer)
        return found


def _refusal(trainer: MegatronTrainer, batch: TrainBatch) -> str:
    try:
        trainer.train_step(batch)
    except AssertionError as e:
        return str(e)
    return "nothing refused"


def _bytes(trainer: MegatronTrainer) -> dict[str, int]:
    """Bytes of the storages of each kind of state, each once."""
    models = [trainer.model, *([trainer.critic.model] if trainer.critic else [])]
    optimizers = [trainer.optimizer, *([trainer.critic.optimizer] if trainer.critic else [])]
    frozen = [m for m in (trainer.reference, trainer.teacher) if m is not None]
    kinds = {
        "policy": parking.weights(trainer.model),
        "others": (t for m in models[1:] + frozen for t in parking.weights(m)),
        "gradients": (t for m in models for t in parking.gradients(m)),
        "main_grads": (p.main_grad for m in models for p in m.parameters() if hasattr(p, "main_grad")),
        "optimizer": (t for o in optimizers for t in parking.optimizer_state(o)),
    }
    found = {}
    for kind, tensors in kinds.items():
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        found[kind] = int(np.sum(list(storages.values())))
    return found
