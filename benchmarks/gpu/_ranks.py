"""Trainer ranks as plain processes, one a GPU, without Ray; and what they are made to do here.

The processes stay, because importing Megatron takes seconds, and run one job after another. A job is a function of this
module, called with a Rendezvous first, on every rank.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from _model import ALPHABET

from rlrun.backends.base import Rendezvous
from rlrun.data.batching import make_train_batches
from rlrun.data.schedule import schedule_step
from rlrun.data.tiny_model import SPECIAL_TOKENS
from rlrun.data.types import Sample, TrainBatch
from rlrun.plan.types import RunPlan

REFERENCE: dict[str, Any] = {}
"""Of rank 0: the gradients that later jobs are compared with."""


class Ranks:
    """A context manager: leaving it ends the processes."""

    def __init__(self, count: int):
        self._context = multiprocessing.get_context("spawn")
        self._workers = [self._start(rank) for rank in range(count)]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _ in self._workers:
            process.kill()
            process.join(10)

    def _start(self, rank: int) -> tuple[Any, Any]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, rank), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def run(self, world: int, job: Callable[..., Any], *args: Any, deadline_s: float) -> list[Any]:
        """The job's result of each rank. Raises RuntimeError with the first rank's error, TimeoutError when late; the
        processes are of no use after either."""
        port, chosen = free_port(), self._workers[:world]
        for rank, (_, connection) in enumerate(chosen):
            connection.send((job.__name__, Rendezvous(rank, world, "127.0.0.1", port), args))
        results: list[Any] = [None] * world
        pending = {connection: rank for rank, (_, connection) in enumerate(chosen)}
        end = time.monotonic() + deadline_s
        while pending:
            ready = wait(list(pending), timeout=max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(
                    f"ranks {sorted(pending.values())} did not finish {job.__name__} in {deadline_s:.0f} s"
                )
            for connection in ready:
                rank = pending.pop(connection)
                try:
                    fine, value = connection.recv()
                except EOFError:
                    fine, value = False, "the process died"
                if not fine:
                    raise RuntimeError(f"rank {rank} of {world} in {job.__name__}: {value}")
                results[rank] = value
        return results


def _serve(connection: Any, rank: int) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    while True:
        try:
            name, rendezvous, args = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, globals()[name](rendezvous, *args)))
        except BaseException as error:
            traceback.print_exc()
            connection.send((False, f"{type(error).__name__}: {error}"))
        _release()


def _release() -> None:
    """Megatron's buffers refer to each other: without this, job after job would stay on the GPU."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def started(rendezvous: Rendezvous, plan: RunPlan, model_dir: str) -> Iterator[Any]:
    from rlrun.backends.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(plan)
    try:
        trainer.start(rendezvous, model_dir)
        yield trainer
    finally:
        trainer.close()


def samples(lengths: Sequence[int], prompt: int = 4) -> list[Sample]:
    """What a rollout could have brought: random characters, with log-probs near those that the new model gives them."""
    rng = np.random.default_rng(0)
    first, count = len(SPECIAL_TOKENS), len(ALPHABET)
    made = []
    for i, length in enumerate(lengths):
        mask = (np.arange(length) >= prompt).astype(np.int8)
        logprobs = (mask * (-np.log(count) + rng.normal(0, 0.1, length))).astype(np.float32)
        made.append(Sample(i, i, rng.integers(first, first + count, length), prompt, mask, logprobs, "length", 0))
    return made


def batches(plan: RunPlan, chosen: Sequence[Sample]) -> list[TrainBatch]:
    """One optimizer step on these samples, cut as the plan says: a batch for each data-parallel rank."""
    t = plan.train
    schedule = schedule_step(
        [len(s.tokens) for s in chosen],
        t.dp,
        batching=t.batching,
        max_tokens_per_gpu=t.max_tokens_per_gpu,
        micro_batch_size=t.micro_batch_size,
        attention_share=t.attention_share,
        cp=t.cp,
    )
    worth = np.linspace(-1, 1.5, len(chosen))
    advantages = [np.asarray(s.loss_mask, np.float32) * np.float32(w) for s, w in zip(chosen, worth, strict=True)]
    old = [s.rollout_logprobs for s in chosen]
    return make_train_batches(chosen, advantages, old, None, schedule, plan.algo.loss_aggregation, 1.0)


# -- jobs -------------------------------------------------------------------------------------------------------------


def steps(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, step: list[TrainBatch]) -> list[dict[str, float]]:
    """Metrics of two optimizer steps on the same batch: the second begins with what the first has made."""
    with started(rendezvous, plan, model_dir) as trainer:
        return [trainer.train_step(step[trainer.info.dp]).values for _ in range(2)]


def gradient(rendezvous: Rendezvous, plan: RunPlan, model_dir: str, step: list[TrainBatch]) -> dict[str, float]:
    """Of one process, rank 0 keeps the gradients of this step; of several, it says by how much theirs differ: of the
    weight that differs most, and of all together, relative to the norm. The plan must have no distributed optimizer,
    whose ranks have a part of the sums each."""
    from rlrun.backends.megatron import cpu, mapping
    from rlrun.backends.megatron.step import run_train

    assert not plan.train.distributed_optimizer
    with started(rendezvous, plan, model_dir) as trainer, cpu.shim():
        spec, algo = plan.model.spec, plan.algo
        trainer.model.zero_grad_buffer()
        run_train(trainer.model, trainer._micro_batches(step[trainer.info.dp], train=True), 1.0, spec.vocab_size, algo)
        for parameter in trainer.model.parameters():
            parameter.data.copy_(parameter.main_grad)
        worst = total = difference = 0.0
        for name, tensor in mapping.export_weights(trainer.model, spec):  # rank 0 alone is given something
            if rendezvous.world_size == 1:
                REFERENCE[name] = tensor.cpu().clone()
                continue
            want = REFERENCE[name].to(tensor.device).double()
            norm, off = float(want.square().sum()), float((tensor.double() - want).square().sum())
            worst, total, difference = max(worst, (off / max(norm, 1e-300)) ** 0.5), total + norm, difference + off
        return {"worst": worst, "all": (difference / max(total, 1e-300)) ** 0.5}


def broadcast(rendezvous: Rendezvous, backend: str, sizes: list[int], repeats: int) -> float:
    """Seconds of the fastest pass over buffers of these bytes, from rank 0 to all others; the first one connects."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rendezvous.rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    address = f"tcp://{rendezvous.host}:{rendezvous.port}"
    dist.init_process_group(backend, init_method=address, rank=rendezvous.rank, world_size=rendezvous.world_size)
    best = float("inf")
    try:
        buffers = [torch.ones(size, dtype=torch.uint8, device=device) for size in sizes]
        for _ in range(repeats):
            dist.barrier()
            began = time.perf_counter()
            for buffer in buffers:
                dist.broadcast(buffer, 0)
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
    finally:
        dist.destroy_process_group()
    return best


def own_steps(
    rendezvous: Rendezvous, plan: RunPlan, model_dir: str, step: list[TrainBatch], repeats: int
) -> dict[str, float | None]:
    """Optimizer steps of a run's trainer, without a run: seconds of the fastest, and what the allocator saw."""
    from bench_trainer import Meter, predicted

    with started(rendezvous, plan, model_dir) as trainer:
        meter = Meter(plan.device == "cuda")
        trainer.train_step(step[0])  # compiles, and makes the optimizer's moments
        return _fastest(meter, lambda: trainer.train_step(step[0]), repeats, predicted(plan, "train")[0])


def stock_steps(rendezvous: Rendezvous, plan: RunPlan, step: list[TrainBatch], repeats: int) -> dict[str, float | None]:
    """The same micro-batches through Megatron-core's GPTModel with its local layers and its own cross-entropy, random
    weights; gradients, clipping and AdamW as the plan says. Its attention takes rows of one length, so a micro-batch is
    [samples, tokens]."""
    import torch
    from bench_trainer import Meter
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from rlrun.backends.megatron import cpu, device
    from rlrun.backends.megatron.model import build_optimizer, transformer_config, wrap_ddp

    spec = plan.model.spec
    where = device.setup(plan)
    with cpu.shim():
        device.join(plan, rendezvous)
        try:
            model = GPTModel(
                config=transformer_config(spec, plan.train, getattr(torch, plan.model.dtype)),
                transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
                vocab_size=spec.vocab_size,
                max_sequence_length=spec.max_position_embeddings,
                share_embeddings_and_output_weights=spec.tied_embeddings,
                position_embedding_type="rope",
                rotary_base=spec.rope_theta,
            )
            model.to(where, getattr(torch, plan.model.dtype))  # torch's norms are made on the host, in float32
            wrapped = wrap_ddp(model, plan.train)
            optimizer = build_optimizer(wrapped, plan.train, plan.algo.optimizer)
            rows = [torch.tensor(np.stack([step[0].tokens[i] for i in m])).to(where) for m in step[0].micro_batches]

            def forward(iterator: Iterator[Any], network: Any) -> Any:
                tokens = next(iterator)
                positions = torch.arange(tokens.shape[1], device=where).expand_as(tokens)
                losses = network(tokens, positions, None, labels=tokens.roll(-1, dims=1))
                return losses, lambda output: (output.float().mean(), {})

            def once() -> None:
                wrapped.zero_grad_buffer()
                optimizer.zero_grad()
                get_forward_backward_func()(
                    forward_step_func=forward,
                    data_iterator=iter(rows),
                    model=[wrapped],
                    num_microbatches=len(rows),
                    seq_length=rows[0].shape[1],
                    micro_batch_size=rows[0].shape[0],
                    forward_only=False,
                )
                optimizer.step()

            once()
            return _fastest(Meter(plan.device == "cuda"), once, repeats, None)
        finally:
            device.leave()


def _fastest(meter: Any, work: Callable[[], Any], repeats: int, planned: float | None) -> dict[str, float | None]:
    seen = [meter(work) for _ in range(repeats)]
    peak = max(gib for _, gib in seen) if meter.cuda else None
    return {"seconds": min(seconds for seconds, _ in seen), "peak_gib": peak, "planned_gib": planned}
