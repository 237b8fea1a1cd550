"""What the tests run on every rank. Results are numpy and plain values, because they travel through a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from attention_jobs import latent  # noqa: F401  (a job)
from convert_jobs import load_converted, save_changed  # noqa: F401  (jobs)
from delta_jobs import delta_net, delta_net_kept, delta_net_steps  # noqa: F401  (jobs)
from family_jobs import family  # noqa: F401  (a job)
from memory_jobs import held  # noqa: F401  (a job)
from parking_jobs import turns  # noqa: F401  (a job)

from rlrun.backends.base import Rendezvous
from rlrun.backends.megatron.trainer import MegatronTrainer
from rlrun.data.types import TokenBatch, TrainBatch
from rlrun.plan.types import RunPlan


@contextmanager
def started(rendezvous: Rendezvous, plan: RunPlan, model_dir: str) -> Iterator[MegatronTrainer]:
    trainer = MegatronTrainer(plan)
    try:
        trainer.start(rendezvous, model_dir)
        yield trainer
    finally:
        trainer.close()


def share(batch: TokenBatch, dp: int, num_dp: int) -> Any:
    """The part of one data-parallel rank: every num_dp-th sample, in micro-batches of at most three, and one more
    micro-batch that is empty, as the last rank gets when samples do not divide."""
    chosen = list(range(dp, len(batch.tokens), num_dp))
    if num_dp == 1:
        return batch
    fields = ("loss_weights", "advantages", "old_logprobs", "ref_logprobs", "rollout_logprobs", "old_values", "returns")
    parts = {f: [getattr(batch, f)[i] for i in chosen] for f in fields if getattr(batch, f, None)}
    local = list(range(len(chosen)))
    cuts = [local[:3], local[3:], []] if dp else [local[:1], local[1:2], local[2:]]
    return replace(batch, tokens=[batch.tokens[i] for i in chosen], micro_batches=cuts, **parts)


def exported(trainer: MegatronTrainer) -> dict[str, np.ndarray]:
    from rlrun.backends.megatron import cpu, mapping

    with cpu.shim():
        return {n: t.float().cpu().numpy() for n, t in mapping.export_weights(trainer.model, trainer.plan.model.spec)}


def train(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batches: list[TrainBatch]) -> dict[str, Any]:
    """Log-probs before, metrics of every step, weights after, log-probs of both models after."""
    with started(rendezvous, plan, model_dir) as trainer:
        dp = trainer.info.dp
        first = share(batches[0], dp, plan.train.dp)
        before = exported(trainer)
        logprobs = trainer.logprobs(first)
        reference = trainer.logprobs(first, "reference") if plan.algo.uses_reference else None
        metrics = [trainer.train_step(share(b, dp, plan.train.dp)).values for b in batches]
        return {
            "info": trainer.info,
            "before": before,
            "logprobs": logprobs,
            "metrics": metrics,
            "after": exported(trainer),
            "logprobs_after": trainer.logprobs(first),
            "reference": reference,
            "reference_after": trainer.logprobs(first, "reference") if plan.algo.uses_reference else None,
        }


def gradients(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batch: TrainBatch) -> dict[str, Any]:
    """The loss, and the summed gradients under their Hugging Face names."""
    from rlrun.backends.megatron import cpu, step

    with started(rendezvous, plan, model_dir) as trainer, cpu.shim():
        trainer.model.zero_grad_buffer()
        micro_batches = trainer._micro_batches(share(batch, trainer.info.dp, plan.train.dp), train=True)
        spec = plan.model.spec
        metrics = step.run_train(trainer.model, micro_batches, batch.temperature, spec.vocab_size, plan.algo)
        for parameter in trainer.model.parameters():
            parameter.data.copy_(parameter.main_grad)
        return {"metrics": metrics, "gradients": exported(trainer)}


def frozen_logprobs(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batch: TrainBatch) -> dict[str, Any]:
    """Of the models beside the policy, before and after a step of the policy."""
    with started(rendezvous, plan, model_dir) as trainer:
        mine = share(batch, trainer.info.dp, plan.train.dp)
        names = ("reference", "teacher")
        before = {name: trainer.logprobs(mine, name) for name in names}
        trainer.train_step(mine)
        after = {name: trainer.logprobs(mine, name) for name in names}
        return {"info": trainer.info, "before": before, "after": after}


def export(rendezvous: Rendezvous, plan: RunPlan, model_dir: str) -> dict[str, Any]:
    from rlrun.backends.megatron import mapping

    with started(rendezvous, plan, model_dir) as trainer:
        return {"weights": exported(trainer), "expected_names": mapping.expected_names(plan.model.spec)}


def learning_rates(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, steps: int) -> list[float]:
    """The rates the optimizer would use, for every parameter group (they must agree)."""
    with started(rendezvous, plan, model_dir) as trainer:
        rates = []
        for _ in range(steps):
            (rate,) = {group["lr"] for group in trainer.optimizer.param_groups}
            rates.append(rate)
            trainer.scheduler.step(1)
        return rates


def odd_batches(rendezvous: Rendezvous, plan: RunPlan, model_dir: str) -> dict[str, Any]:
    with started(rendezvous, plan, model_dir) as trainer:
        single = TokenBatch(tokens=[np.array([3]), np.array([4])], micro_batches=[[1], [0]])
        return {
            "empty": trainer.logprobs(TokenBatch(tokens=[], micro_batches=[[], []])),
            "single": trainer.logprobs(single),
        }


def nan_step(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batch: TrainBatch) -> dict[str, Any]:
    with started(rendezvous, plan, model_dir) as trainer:
        before = trainer.digest()["weights"]
        broken = replace(batch, advantages=[a * np.float32("nan") for a in batch.advantages])
        try:
            trainer.train_step(broken)
        except Exception as error:
            return {
                "error": type(error).__name__,
                "message": str(error),
                "unchanged": trainer.digest()["weights"] == before,
            }
        return {"error": None}


def threaded_step(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, batch: TrainBatch) -> dict[str, float]:
    """start in one thread, a step in another."""
    from concurrent.futures import ThreadPoolExecutor

    trainer = MegatronTrainer(plan)
    for call in (lambda: trainer.start(rendezvous, model_dir), lambda: trainer.train_step(batch), trainer.close):
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(call).result()
        values = getattr(result, "values", None)
        if isinstance(values, dict):
            metrics = values
    return metrics


def save_and_go_on(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str, batches: list[TrainBatch], steps_before: int
) -> dict[str, Any]:
    """Trains `steps_before` batches, saves, and trains the others without a break."""
    with started(rendezvous, plan, model_dir) as trainer:
        for batch in batches[:steps_before]:
            trainer.train_step(share(batch, trainer.info.dp, plan.train.dp))
        torch.rand(3)  # generators that have moved
        np.random.rand(3)
        trainer.save(directory)
        return {"at_save": trainer.digest(), **_go_on(trainer, batches[steps_before:])}


def load_and_go_on(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str, batches: list[TrainBatch], warm: bool = False
) -> dict[str, Any]:
    """`warm` first trains on something else, so that loading has to overwrite a used state."""
    with started(rendezvous, plan, model_dir) as trainer:
        if warm:
            trainer.train_step(share(batches[0], trainer.info.dp, plan.train.dp))
        trainer.load(directory)
        steps = [s["step"] for part in trainer.optimizer.chained_optimizers for s in part.optimizer.state.values()]
        return {
            "at_load": trainer.digest(),
            "own_steps": len({id(step) for step in steps}) == len(steps),
            **_go_on(trainer, batches),
        }


def _go_on(trainer: MegatronTrainer, batches: list[TrainBatch]) -> dict[str, Any]:
    dp = trainer.plan.train.dp
    metrics = [trainer.train_step(share(b, trainer.info.dp, dp)).values for b in batches]
    return {"metrics": metrics, "at_end": trainer.digest(), "weights": exported(trainer)}


def export_hf(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str) -> None:
    with started(rendezvous, plan, model_dir) as trainer:
        trainer.export_hf(directory)


def start_error(rendezvous: Rendezvous, plan: RunPlan, model_dir: str) -> list[tuple[str, str]]:
    """Codes and summaries of the RlrunError that starting raises."""
    from rlrun.errors import RlrunError

    trainer = MegatronTrainer(plan)
    try:
        trainer.start(rendezvous, model_dir)
    except RlrunError as error:
        return [(problem.code, problem.summary) for problem in error.problems]
    finally:
        trainer.close()
    return []


def children_after_save(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str) -> list[str]:
    """Processes started while saving, whether they ended or not."""
    import multiprocessing.process

    started_processes = []
    original = multiprocessing.process.BaseProcess.start

    def record(process: Any) -> None:
        started_processes.append(str(process))
        original(process)

    with started(rendezvous, plan, model_dir) as trainer:
        multiprocessing.process.BaseProcess.start = record
        try:
            trainer.save(directory)
        finally:
            multiprocessing.process.BaseProcess.start = original
    return started_processes


def load_error(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str) -> tuple[str, str]:
    with started(rendezvous, plan, model_dir) as trainer:
        try:
            trainer.load(directory)
        except Exception as error:
            return type(error).__name__, str(error)
    return "", ""


def logprobs_of(
    rendezvous: Rendezvous,
    hidden: np.ndarray,
    weight: np.ndarray,
    targets: np.ndarray,
    upstream: np.ndarray,
    temperature: float,
    rows: int,
    entropy_coef: float,
) -> dict[str, np.ndarray]:
    """This rank's slice of the vocabulary; the hidden gradient is summed over ranks. A coefficient of 0 leaves the
    entropy without a gradient."""
    from megatron_plans import make_plan

    from rlrun.backends.megatron import cpu, device, logprobs
    from rlrun.families.splits import Columns

    tp = rendezvous.world_size
    plan = make_plan(tp=tp)
    device.setup(plan)
    with cpu.shim():
        device.join(plan, rendezvous)
        try:
            leaf = torch.from_numpy(hidden).requires_grad_()
            shard = Columns(padded=True).shard([torch.from_numpy(weight)], rendezvous.rank, tp).clone().requires_grad_()
            spread = logprobs.spread_hidden(leaf[:, None], sequence_parallel=False)
            values, entropy = logprobs.token_logprobs(
                spread, shard, torch.from_numpy(targets), temperature, len(weight), rows, entropy_coef != 0
            )
            assert entropy.requires_grad == (entropy_coef != 0)
            ((values + entropy_coef * entropy) * torch.from_numpy(upstream)).sum().backward()
        finally:
            device.leave()
    return {
        "logprobs": values.detach().numpy(),
        "entropy": entropy.detach().numpy(),
        "hidden_grad": leaf.grad.numpy(),
        "weight_grad": shard.grad.numpy(),
    }


def publish(rendezvous: Rendezvous, plan: RunPlan, model_dir: str) -> dict[str, Any]:
    """What a sender is given, and what publish returns."""
    sent: dict[str, Any] = {}

    class Recorder:
        def send(self, named, version, expected_names):
            sent.update(weights={n: t.numpy() for n, t in named}, version=version, expected=list(expected_names))
            return {"bytes": 5.0}

        def close(self):
            sent["closed"] = True

    with started(rendezvous, plan, model_dir) as trainer:
        if trainer.info.rank == 0:
            trainer._sender = Recorder()
        result = trainer.publish([], 7)
    return {"sent": sent, "result": result}


def contract(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, directory: str) -> None:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent.parent))
    from contract import check_train_backend

    with started(rendezvous, plan, model_dir) as trainer:
        check_train_backend(trainer, directory, plan.model.spec.vocab_size)


def step_gradients(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, steps: dict[str, list[TrainBatch]]
) -> dict[str, dict[str, Any]]:
    """Loss and summed gradients of several optimizer steps, all from the same weights. A step is one batch for each
    data-parallel rank."""
    from rlrun.backends.megatron import cpu, step

    found = {}
    with started(rendezvous, plan, model_dir) as trainer, cpu.shim():
        weights = [parameter.data.clone() for parameter in trainer.model.parameters()]
        for name, batches in steps.items():
            trainer.model.zero_grad_buffer()
            micro_batches = trainer._micro_batches(batches[trainer.info.dp], train=True)
            vocab_size = plan.model.spec.vocab_size
            metrics = step.run_train(trainer.model, micro_batches, batches[0].temperature, vocab_size, plan.algo)
            for parameter in trainer.model.parameters():
                parameter.data.copy_(parameter.main_grad)
            found[name] = {"loss": metrics["loss"], "gradients": exported(trainer)}
            for parameter, weight in zip(trainer.model.parameters(), weights, strict=True):
                parameter.data.copy_(weight)
    return found
