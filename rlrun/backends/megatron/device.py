"""Where a rank computes: torch device, process group, model-parallel groups and seeds."""

from __future__ import annotations

import math
import os
import random
from dataclasses import astuple
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from rlrun.backends.base import RankInfo, Rendezvous
from rlrun.backends.megatron import cpu
from rlrun.errors import RunFailed
from rlrun.plan.types import RunPlan


def setup(plan: RunPlan) -> torch.device:
    """Picks the device of this process and prepares it. A process that sees several GPUs takes the one of its
    LOCAL_RANK (0 when unset); the runtime normally shows it a single one.

    Raises RunFailed when the plan says cuda and there is none.
    """
    if plan.device == "cuda":
        if not torch.cuda.is_available():
            raise RunFailed("trainer", "the plan says placement.device=cuda, but this process sees no GPU")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    torch.set_num_threads(plan.train.threads)
    cpu.install()
    return cpu.CPU


def join(plan: RunPlan, rendezvous: Rendezvous) -> RankInfo:
    """Meets the other ranks, builds Megatron's groups and seeds every generator; returns this rank's coordinates."""
    train = plan.train
    assert rendezvous.world_size == train.tp * train.pp * train.cp * train.dp, "world size is not tp * pp * cp * dp"
    # The runtime enforces the deadline of each phase and names the late part; this one only ends orphaned ranks.
    timeout = timedelta(seconds=max(astuple(plan.timeouts)))
    dist.init_process_group(
        train.backend,
        init_method=f"tcp://{rendezvous.host}:{rendezvous.port}",
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        timeout=timeout,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=train.tp,
        pipeline_model_parallel_size=train.pp,
        context_parallel_size=train.cp,
        expert_model_parallel_size=train.ep,
        # Left alone, Megatron takes tp for it.
        expert_tensor_parallel_size=train.etp if plan.model.spec.moe is not None else None,
        distributed_timeout_minutes=math.ceil(timeout.total_seconds() / 60),
        # Only what is gathered on the host goes through them.
        create_gloo_process_groups=plan.checkpoint.gather == "host",
    )
    info = _rank_info(rendezvous.rank)
    seed(plan.seed, info)
    return info


def _rank_info(rank: int) -> RankInfo:
    tp, cp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_context_parallel_rank()
    return RankInfo(
        rank=rank,
        dp=parallel_state.get_data_parallel_rank(),
        tp=tp,
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        cp=cp,
        reports=tp == 0 and cp == 0 and parallel_state.is_pipeline_last_stage(),
    )


def seed(value: int, info: RankInfo) -> None:
    """As Megatron-LM does: one seed for each pipeline stage; tensor-parallel ranks differ in the tracked states."""
    value += 100 * info.pp
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
    model_parallel_cuda_manual_seed(value)


def leave() -> None:
    """Destroys every process group. May be called again."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
