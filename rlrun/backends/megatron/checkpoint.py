"""Saving and loading a training state by Megatron's `dist_checkpointing` (format torch_dist), and its digest.

A checkpoint holds the model, the optimizer (in a form that any parallel layout can read), the schedule's position and
each rank's generator states. Faults of megatron-core 0.16.1, on any device, are worked around in `optimizer_state` and
`mixed_optimizer`.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch import Tensor

from rlrun.backends.megatron import optimizer_state, writer
from rlrun.backends.megatron.mapping import global_parameters, unwrap
from rlrun.plan.types import TrainPlan

METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}
"""The one optimizer format that loads into another tensor-, pipeline-, data- and expert-parallel layout with equal
results."""


def save(
    directory: str,
    model: torch.nn.Module,
    optimizer: MegatronOptimizer,
    scheduler: OptimizerParamScheduler,
    train: TrainPlan,
) -> None:
    """Writes into an existing, empty folder. Collective."""
    writing = writer.Writing(directory, [request(directory, model, optimizer, scheduler, train, copy=False)])
    writing.run()
    writing.finish()


def request(
    directory: str,
    model: torch.nn.Module,
    optimizer: MegatronOptimizer,
    scheduler: OptimizerParamScheduler,
    train: TrainPlan,
    copy: bool,
) -> AsyncRequest:
    """All that is needed to write the state into an existing, empty folder, for `writer.Writing`. Collective.

    `copy`: the files will hold the state of now, whenever they are written; without it they have to be written before
    the state changes.
    """
    state = _model_and_optimizer(model, optimizer, is_loading=False)
    state["optimizer"] = {"step": optimizer_state.step(optimizer)}
    state["scheduler"] = scheduler.state_dict()
    state["layout"] = _layout(train)
    state["rng"] = _rng_object()
    fresh = optimizer_state.cut(state["optimizer_tensors"]) if optimizer_state.is_distributed(optimizer) else set()
    tensors = [t for t in writer.tensors(state) if writer.place(t) not in fresh]  # before Megatron takes it apart
    with writer.failing_as_run_failed(directory), writer.in_process():
        made = dist_checkpointing.save(state, directory, async_sharded_save=True)
        return writer.on_host(made, tensors if copy else [])


def load(
    directory: str,
    model: torch.nn.Module,
    optimizer: MegatronOptimizer,
    scheduler: OptimizerParamScheduler,
    train: TrainPlan,
) -> None:
    """The inverse of `save`. Generator states are restored only into the layout that saved them. Collective.

    Of the optimizer, the moments, main weights and steps: the settings of its parameter groups are the plan's and the
    schedule's.
    """
    state = _model_and_optimizer(model, optimizer, is_loading=True)
    with writer.failing_as_run_failed(directory, reading=True):
        common = dist_checkpointing.load_common_state_dict(directory)
        same_layout = common["layout"] == _layout(train)
        step = optimizer_state.saved_step(common["optimizer"])
        if same_layout:
            state["rng"] = _rng_object()
        state = dist_checkpointing.load(state, directory)
    unwrap(model).load_state_dict(state["model"])
    optimizer_state.load(optimizer, state["optimizer_tensors"], step)
    scheduler.num_steps = 0  # load_state_dict adds the checkpoint's steps to these
    scheduler.load_state_dict(state["scheduler"])
    if same_layout:
        set_rng_state(state["rng"])


def _model_and_optimizer(model: torch.nn.Module, optimizer: MegatronOptimizer, is_loading: bool) -> dict[str, Any]:
    # Sharded tensors alone. Those of the optimizer have a key of their own, beside the numbers that all ranks share.
    sharded = unwrap(model).sharded_state_dict(metadata=dict(METADATA))
    return {
        "model": sharded,
        "optimizer_tensors": optimizer_state.sharded(optimizer, sharded, dict(METADATA), is_loading),
    }


def _layout(train: TrainPlan) -> list[int]:
    experts = [train.ep, train.etp] if (train.ep, train.etp) != (1, 1) else []
    return [train.tp, train.pp, train.cp, train.dp, *experts]


def rng_state() -> dict[str, Any]:
    """Python, numpy, torch, CUDA and Megatron's tracked generators of this rank."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "tracker": {name: state.clone() for name, state in get_cuda_rng_tracker().get_states().items()},
    }


def set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    get_cuda_rng_tracker().set_states(state["tracker"])


def _rng_object() -> ShardedObject:
    return ShardedObject("rng", rng_state(), (dist.get_world_size(),), (dist.get_rank(),))


def digest(model: torch.nn.Module, optimizer: MegatronOptimizer, scheduler: OptimizerParamScheduler) -> dict[str, str]:
    """sha256 of this rank's weights, optimizer state (main weights, moments, steps), generators and schedule."""
    return {
        "weights": _sha256(_bytes(p) for p in global_parameters(model).values()),
        "optimizer": _sha256(_optimizer_bytes(optimizer)),
        "rng": _sha256([pickle.dumps(_plain(rng_state()))]),
        "lr": _sha256([repr((scheduler.num_steps, [group["lr"] for group in optimizer.param_groups])).encode()]),
    }


def _sha256(parts: Any) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()


def _optimizer_bytes(optimizer: MegatronOptimizer) -> Iterator[bytes]:
    for inner in optimizer_state.inner(optimizer):
        for group in inner.optimizer.param_groups:
            for parameter in group["params"]:
                yield _bytes(parameter)
                state = inner.optimizer.state.get(parameter, {})
                # A state that is not there yet hashes like one at step 0, which it is.
                yield _bytes(state.get("step", torch.tensor(0.0)))
                for key in ("exp_avg", "exp_avg_sq"):
                    yield _bytes(state[key]) if key in state else _bytes(torch.zeros_like(parameter))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _plain(value: Any) -> Any:
    """The same value with tensors and arrays as bytes, so that equal states have equal pickles."""
    if isinstance(value, Tensor):
        return _bytes(value)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, _plain(value[key])) for key in sorted(value)]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
