"""All that decides how many bytes a GPU and a node hold, in one record, and the sizes of GPUs and allowances."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.plan.gpus import profiles
from rlrun.plan.parameters import share, stage_parameters, stage_sizes
from rlrun.plan.types import ModelSpec

GIB = 2**30

GPUS = {name: gpu.memory_gib for name, gpu in profiles().items()}
"""GiB of each kind of GPU, as the driver shows it."""

TRAINER_OVERHEAD = 3 * GIB
"""Allowance for CUDA context, NCCL buffers and kernels' workspace of a trainer process."""

ENGINE_OVERHEAD = 3 * GIB
"""Allowance for an engine's CUDA context, graphs and working memory, outside of mem_fraction_static."""

DEFAULT_FRACTION = 0.85
"""What SGLang takes for weights and KV cache when mem_fraction_static is left to it; it depends on the GPU."""

HOST_PROCESS = 4 * GIB
"""Allowance for the host memory of one trainer or engine process: Python, torch, CUDA, pinned buffers."""

DELTA_WORK = GIB // 2
"""Allowance for comparing and encoding one segment of weights (2^24 elements) on a GPU: masks, positions, codes."""

TIGHT = 0.9
"""Above this share of a GPU a run may still end out of memory: by fragmentation (about 5 %) or by these estimates."""

Terms = dict[str, int]


@dataclass(frozen=True)
class Layout:
    """One configuration, as far as memory goes."""

    spec: ModelSpec
    gpu: str
    weight_bytes: int
    colocated: bool
    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    max_tokens: int | None  # packed: cap of a micro-batch on one GPU
    micro_batch_size: int | None  # padded: its samples
    recompute: bool
    sequence_parallel: bool
    distributed_optimizer: bool
    reference: bool
    engine_tp: int
    mem_fraction: float | None
    max_total_tokens: int | None
    sample_tokens: int  # longest prompt and response
    bucket_bytes: int  # of a weight sync; 0 without buckets
    etp: int = 1
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    critic: bool = False  # a second trunk, trained, with a scalar head
    teacher: ModelSpec | None = None  # a frozen model on the trainer's ranks
    gradient_bytes: int = 4
    moment_bytes: int = 4
    optimizer_offload: bool = False  # the optimizer lives and works on the host
    trainer_offload: bool = False  # colocated: nothing of the trainer on the GPU while engines generate
    rollout_offload: bool = False  # colocated: no engine weights and KV cache on the GPU while the trainer works
    gather_on_host: bool = False  # where optimizer shards are joined for a checkpoint
    async_save: bool = False  # checkpoints are written while training goes on
    max_running: int = 64  # requests decoded together in one engine
    rollout_gpus: int = 8
    engine_pp: int = 1
    engine_dp: int = 1  # data-parallel attention ranks of an engine
    gpus_per_node: int = 8
    host_gib: float | None = None
    delta_sync: bool = False  # weights travel as their changes
    frozen_copies: int = 0  # bytes of frozen models' weights that a node's host keeps while the trainer has their GPUs
    canary: bool = False  # after a push, a text is scored by both sides

    @property
    def world(self) -> int:
        """GPUs of the trainer."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch on one GPU: a sample longer than the cap goes alone. Context parallelism
        divides samples; the cap is what one GPU gets."""
        if self.micro_batch_size is not None:
            return share(self.micro_batch_size * self.sample_tokens, self.cp)
        return max(self.max_tokens or 0, share(self.sample_tokens, self.cp))

    @property
    def gpu_bytes(self) -> int:
        return int(GPUS[self.gpu] * GIB)

    @property
    def stages(self) -> list[int]:
        """Layers of each pipeline stage."""
        return stage_sizes(self.spec.num_layers, self.pp, self.first_stage_layers, self.last_stage_layers)

    @property
    def master_bytes(self) -> int:
        """Bytes of a float32 copy of a weight; float32 weights are their own."""
        return 4 if self.weight_bytes < 4 else 0

    @property
    def shards(self) -> tuple[int, int]:
        """Ranks that share the optimizer state of (what is not an expert, an expert). Without expert parallelism
        Megatron treats experts like everything else, also where tensor parallelism gives several ranks the same."""
        if not self.distributed_optimizer:
            return 1, 1
        plain = self.dp * self.cp
        return plain, plain if self.ep == 1 else max(1, self.world // (self.pp * self.ep * self.etp))

    def parameters(self, scalar_head: bool = False) -> list[tuple[int, int]]:
        """(non-expert, expert) parameters of one rank of each stage, of the policy or of the critic."""
        return stage_parameters(self.spec, self.tp, self.stages, self.ep, self.etp, scalar_head)


def state_bytes_per_parameter(m: Layout, on_gpu: bool = True) -> int:
    """Weights, gradients and, where they are on the GPU, master weights and moments."""
    optimizer = m.master_bytes + 2 * m.moment_bytes
    return m.weight_bytes + m.gradient_bytes + (0 if on_gpu and m.optimizer_offload else optimizer)
