"""`MegatronTrainer`: one trainer rank. Everything collective, in the order all ranks call it."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist

from rlrun.algos import losses
from rlrun.backends.base import EngineAddress, RankInfo, Rendezvous, TrainMetrics
from rlrun.backends.megatron import (
    _quiet,  # noqa: F401  (first: it imports Megatron without its warnings)
    checkpoint,
    cpu,
    critic,
    device,
    hf_reader,
    hf_writer,
    mapping,
    microbatch,
    parking,
    step,
    writer,
)
from rlrun.backends.megatron.model import PolicyModel, build_model, build_optimizer, build_scheduler, wrap_ddp
from rlrun.data.types import TokenBatch, TrainBatch, ValueBatch
from rlrun.errors import RunFailed
from rlrun.plan.types import ModelSpec, RunPlan

CRITIC = "critic"
"""Folder of the critic inside of a checkpoint."""


def _in_megatron(method: Callable) -> Callable:
    """Enters the CPU shim, which is thread-local, for one public call."""

    @functools.wraps(method)
    def entered(self: MegatronTrainer, *args: Any, **kwargs: Any) -> Any:
        with cpu.shim():
            return method(self, *args, **kwargs)

    return entered


class MegatronTrainer:
    """Implements `rlrun.backends.base.TrainBackend` on megatron-core; one instance a process, gloo or NCCL.

    The reference model, when the plan uses one, is a second, frozen copy of the initial weights (or of those at
    `algo.reference_path`) without gradients or optimizer state; the teacher of a distillation is one more.
    """

    def __init__(self, plan: RunPlan):
        self.plan = plan
        self.info: RankInfo  # from `start` on
        self.model_dir = ""
        self._sender: Any = None
        self._writing: writer.Writing | None = None
        self._weights, self._rest = parking.Parked(), parking.Parked()  # the policy's weights; everything else

    @_in_megatron
    def start(self, rendezvous: Rendezvous, model_dir: str) -> RankInfo:
        plan = self.plan
        self.model_dir = model_dir
        losses.load(plan.algo.loss.kind)
        self.device = device.setup(plan)
        self.dtype = getattr(torch, plan.model.dtype)
        self.info = device.join(plan, rendezvous)
        model = self._load_model(model_dir)
        self.reference: PolicyModel | None = None
        if plan.algo.uses_reference:
            self.reference = self._load_model(plan.algo.reference_path or model_dir).requires_grad_(False)
        self.teacher: PolicyModel | None = None
        if plan.algo.teacher is not None:
            self.teacher = self._load_model(plan.algo.teacher.path, plan.algo.teacher.spec).requires_grad_(False)
        self.model = wrap_ddp(model, plan.train)
        self.optimizer = build_optimizer(self.model, plan.train, plan.algo.optimizer, plan.checkpoint.gather == "host")
        self.scheduler = build_scheduler(self.optimizer, plan.algo.optimizer)
        self.critic = critic.build(plan, self.dtype, model_dir) if plan.critic is not None else None
        if self.critic is not None:
            self.info = replace(self.info, notes=(self.critic.note,))
        return self.info

    def _load_model(self, model_dir: str, spec: ModelSpec | None = None) -> PolicyModel:
        spec = spec or self.plan.model.spec
        model = build_model(spec, self.plan.train, self.dtype)
        hf_reader.load_hf(model, model_dir, spec)
        return model

    @_in_megatron
    def logprobs(self, batch: TokenBatch, model: str = "policy") -> list[np.ndarray]:
        network = {"policy": self.model, "reference": self.reference, "teacher": self.teacher}[model]
        assert network is not None, f"the plan uses no {model} model"
        self._require_here(weights_only=model == "policy")
        micro_batches = self._micro_batches(batch, train=False)
        values = step.run_logprobs(network, micro_batches, batch.temperature, self.plan.model.spec.vocab_size)
        return values if self.info.reports else []

    @_in_megatron
    def train_step(self, batch: TrainBatch) -> TrainMetrics:
        """Metrics: those of `rlrun.algos.losses.policy_loss`, and num_tokens, grad_norm (before clipping), lr
        (of this step). Raises RunFailed on every rank when the loss or the gradient is not finite; the loss is checked
        before anything is updated."""
        self._require_here()
        micro_batches = self._micro_batches(batch, train=True)
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        spec, algo = self.plan.model.spec, self.plan.algo
        metrics = step.run_train(self.model, micro_batches, batch.temperature, spec.vocab_size, algo)
        self._refuse_nonfinite("loss", metrics["loss"])
        return TrainMetrics(metrics | self._descend(self.optimizer, self.scheduler))

    @_in_megatron
    def values(self, batch: TokenBatch) -> list[np.ndarray]:
        assert self.critic is not None, "the plan has no critic"
        self._require_here()
        values = self.critic.values(self._micro_batches(batch, train=False))
        return values if self.info.reports else []

    @_in_megatron
    def value_step(self, batch: ValueBatch) -> TrainMetrics:
        """As `train_step`. Metrics: value_loss, value_clip_fraction, num_tokens, grad_norm (before clipping), lr."""
        assert self.critic is not None, "the plan has no critic"
        self._require_here()
        micro_batches = self._micro_batches(batch, train=True)
        self.critic.model.zero_grad_buffer()
        self.critic.optimizer.zero_grad()
        metrics = self.critic.gradient(micro_batches)
        self._refuse_nonfinite("value loss", metrics["value_loss"], of="critic")
        return TrainMetrics(metrics | self._descend(self.critic.optimizer, self.critic.scheduler, of="critic"))

    def _descend(self, optimizer: Any, scheduler: Any, of: str = "algo") -> dict[str, float]:
        """The optimizer's step on the gradients that are there, and the schedule's. `of`: the section of its keys."""
        # The first group that has a schedule; all have the same one.
        lr = optimizer.param_groups[0]["lr"]
        _, grad_norm, _ = optimizer.step()
        self._refuse_nonfinite("gradient norm", grad_norm, of)
        scheduler.step(1)
        return {"lr": lr, "grad_norm": float(grad_norm)}

    def _micro_batches(self, batch: TokenBatch, train: bool) -> list[microbatch.MicroBatch]:
        layout = self.plan.train
        cut = microbatch.Cut(layout.tp if layout.sequence_parallel else 1, layout.cp, self.info.cp)
        return microbatch.make_microbatches(batch, layout.batching, cut, self.device, train)

    def _refuse_nonfinite(self, what: str, value: float, of: str = "algo") -> None:
        if not math.isfinite(value):
            scheduler, whose = (self.scheduler, "")
            if of == "critic":
                assert self.critic is not None
                scheduler, whose = (self.critic.scheduler, "critic's ")
            raise RunFailed(
                "trainer",
                f"the {whose}{what} is {value} at optimizer step {scheduler.num_steps + 1}",
                f"resume from the last checkpoint with a smaller {of}.lr or {of}.clip_grad",
            )

    @_in_megatron
    def park(self, keep_weights: bool) -> float:
        began = time.perf_counter()
        if not self._rest.away:
            held, gradients = self._state_but_weights()
            self._rest.park(held, gradients, staying=parking.weights(self.model))
        if not keep_weights and not self._weights.away:
            self._weights.park(parking.weights(self.model))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # for the engines
        dist.barrier()
        return time.perf_counter() - began

    @_in_megatron
    def unpark(self, weights_only: bool = False) -> float:
        began = time.perf_counter()
        self._weights.unpark()
        if not weights_only:
            self._rest.unpark()
        dist.barrier()
        return time.perf_counter() - began

    def _state_but_weights(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Everything that this rank holds beside the policy's weights, and gradients."""
        held: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        trained = [(self.model, self.optimizer)]
        if self.critic is not None:
            trained.append((self.critic.model, self.critic.optimizer))
            held += parking.weights(self.critic.model)
        for model, optimizer in trained:
            optimizer.zero_grad()  # a step leaves copies and slices of the gradients behind
            held += parking.optimizer_state(optimizer)
            gradients += parking.gradients(model)
        for frozen in (self.reference, self.teacher):
            held += parking.weights(frozen) if frozen is not None else []
        return held, gradients

    def _require_here(self, weights_only: bool = False) -> None:
        missing = [
            what
            for what, part in (("the policy's weights", self._weights), ("the rest of the trainer's state", self._rest))
            if part.away and not (weights_only and part is self._rest)
        ]
        assert not missing, f"needs {' and '.join(missing)}, which are parked"

    def memory(self) -> dict[str, float]:
        found = {
            "host_used": float(psutil.virtual_memory().used),
            "host_rss": float(psutil.Process().memory_info().rss),
        }
        found["host_parked"] = float(self._weights.host_bytes + self._rest.host_bytes)
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            found |= {
                "gpu_used": float(total - free),
                "gpu_reserved": float(torch.cuda.memory_reserved(self.device)),
                "gpu_peak": float(torch.cuda.max_memory_allocated(self.device)),
            }
            torch.cuda.reset_peak_memory_stats(self.device)
        return found

    @_in_megatron
    def connect_engines(self, engines: Sequence[EngineAddress], run_dir: str) -> None:
        if self.info.rank == 0:
            from rlrun.weight_sync.files import Files, folder_of
            from rlrun.weight_sync.senders import make_sender

            sync = self.plan.sync
            assert sync is not None, "weight sync without engines"
            self._close_sender()
            files = Files(folder_of(sync, self.plan.name, run_dir), self._write_hf)
            self._sender = make_sender(sync, engines, self.device.type, self.plan.timeouts.sync_s, files)
            self._sender.connect()
        dist.barrier()

    @_in_megatron
    def publish(self, engines: Sequence[EngineAddress], version: int) -> dict[str, float]:
        self._require_here(weights_only=True)
        spec = self.plan.model.spec
        named = mapping.export_weights(self.model, spec)
        result: dict[str, float] = {}
        if self.info.rank == 0:
            assert self._sender is not None, "connect_engines comes before publish"
            result = self._sender.send(named, version, mapping.expected_names(spec))
        for _ in named:  # the other ranks yield nothing; they answer rank 0's requests for their shards
            pass
        dist.barrier()
        return result

    @_in_megatron
    def save(self, directory: str) -> None:
        self._require_here()
        checkpoint.save(directory, self.model, self.optimizer, self.scheduler, self.plan.train)
        if self.critic is not None:  # gathered when nothing of the policy is left in memory
            inner, own = self._critic_folder(directory), self.critic
            checkpoint.save(inner, own.model, own.optimizer, own.scheduler, self.plan.train)

    @_in_megatron
    def begin_save(self, directory: str) -> None:
        assert self._writing is None, "finish_save comes before another begin_save"
        self._require_here()
        train = self.plan.train
        requests = [checkpoint.request(directory, self.model, self.optimizer, self.scheduler, train, copy=True)]
        if self.critic is not None:
            inner, own = self._critic_folder(directory), self.critic
            requests.append(checkpoint.request(inner, own.model, own.optimizer, own.scheduler, train, copy=True))
        self._writing = writer.Writing(directory, requests)
        self._writing.start()

    def save_done(self) -> bool:
        return self._writing is None or self._writing.done

    @_in_megatron
    def finish_save(self) -> float:
        assert self._writing is not None, "begin_save comes before finish_save"
        writing, self._writing = self._writing, None
        return writing.finish()

    def _critic_folder(self, directory: str) -> str:
        """Made for what is saved there."""
        inner = os.path.join(directory, CRITIC)
        if self.info.rank == 0:
            os.makedirs(inner)
        dist.barrier()
        return inner

    @_in_megatron
    def load(self, directory: str) -> None:
        self._require_here()
        inner = os.path.join(directory, CRITIC)
        if self.critic is not None and not os.path.isdir(inner):
            raise RunFailed(
                "trainer",
                f"the checkpoint in {directory} was saved without a critic, and the plan has one",
                "start a new run; its model.path may be the hf folder that the other one left",
            )
        checkpoint.load(directory, self.model, self.optimizer, self.scheduler, self.plan.train)
        if self.critic is not None:
            checkpoint.load(inner, self.critic.model, self.critic.optimizer, self.critic.scheduler, self.plan.train)
        dist.barrier()

    @_in_megatron
    def export_hf(self, directory: str) -> None:
        self._require_here(weights_only=True)
        spec = self.plan.model.spec
        named = mapping.export_weights(self.model, spec)
        if self.info.rank == 0:
            self._write_hf(named, directory)
        for _ in named:
            pass
        dist.barrier()

    def _write_hf(self, named: Iterable[tuple[str, torch.Tensor]], directory: str) -> None:
        """A run that goes on after its end writes its folder again."""
        hf_writer.write_hf(named, self.plan.model.spec, self.dtype, self.model_dir, directory, replace=True)

    @_in_megatron
    def digest(self) -> dict[str, str]:
        self._require_here()
        found = checkpoint.digest(self.model, self.optimizer, self.scheduler)
        if self.critic is not None:
            own = checkpoint.digest(self.critic.model, self.critic.optimizer, self.critic.scheduler)
            found |= {f"critic_{part}": own[part] for part in ("weights", "optimizer", "lr")}
        return found

    @_in_megatron
    def close(self) -> None:
        self._close_sender()
        device.leave()

    def _close_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None
