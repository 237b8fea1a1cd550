"""Memory, offload, pipeline stages and expert parallelism."""

from __future__ import annotations

from case import BIG, QUICK, Case

SPLIT = "placement=split_8gpu"
MOE = [
    BIG,
    "model=qwen3_30b_a3b",
    "placement.gpu=h200_141gb",
    "placement.rollout.gpus_per_engine=8",
    "rollout.sglang.mem_fraction_static=0.6",
    "rollout.offload=true",
    "checkpoint.gather=host",
]
GDN = [BIG, "model=qwen3_5_2b"]
PIPED = [BIG, "placement.trainer.pp=2"]
SPARSE = [
    BIG,
    "model=glm5_2",
    "placement.num_nodes=32",
    "placement.trainer.gpus=256",
    "placement.rollout.gpus=256",
    "placement.trainer.tp=4",
    "placement.trainer.pp=8",
    "placement.trainer.ep=32",
    "rollout.offload=true",
]

CASES = [
    Case("memory-does-not-fit", [BIG, "placement.trainer.tp=1", "rollout.sglang.mem_fraction_static=0.4"],
         ["checkpoint.gather=host"]),
    Case(
        "memory-does-not-fit",
        [*MOE, "placement.gpu=h100_80gb", "placement.trainer.tp=4", "placement.trainer.ep=8", "trainer.offload=true"],
        ["trainer.optimizer_offload=true"],
    ),
    Case(
        "host-memory-does-not-fit",
        [BIG, "placement.host_memory_gib=300"],
        ["checkpoint.gather=host"],
    ),
    Case(
        "host-memory-does-not-fit",
        [BIG, "placement.host_memory_gib=150", "trainer.offload=true", "checkpoint.gather=host"],
        ["placement.host_memory_gib=300"],
    ),
    Case("optimizer-not-sharded", [*PIPED, "trainer.distributed_optimizer=false", "trainer.optimizer_offload=true"],
         ["trainer.distributed_optimizer=true"]),
    Case("optimizer-not-sharded", [*PIPED, "trainer.distributed_optimizer=false", "trainer.optimizer_dtype=bfloat16"],
         ["trainer.distributed_optimizer=true"]),
    Case("inactive-key", [BIG, SPLIT, "trainer.offload=true"], ["trainer.offload=false"]),
    Case("inactive-key", [BIG, SPLIT, "rollout.offload=true"], ["rollout.offload=false"]),
    Case("inactive-key", ["+experiment=quickstart_sft", "trainer.offload=true"], ["trainer.offload=false"]),
    Case("inactive-key", [QUICK, "trainer.optimizer_offload=true"], ["trainer.optimizer_offload=false"]),
    Case("inactive-key", [QUICK, "trainer.grad_dtype=bfloat16"], ["trainer.grad_dtype=float32"]),
    Case("inactive-key", [BIG, "trainer.optimizer_offload=true", "trainer.optimizer_dtype=bfloat16"],
         ["trainer.optimizer_dtype=float32"]),
    Case("inactive-key", [QUICK, "trainer.distributed_optimizer=false", "checkpoint.gather=host"],
         ["checkpoint.gather=gpu"]),
    Case("inactive-key", [BIG, "placement.trainer.etp=2"], ["placement.trainer.etp=1"]),
    Case("inactive-key", [BIG, "placement.trainer.first_stage_layers=2"],
         ["placement.trainer.first_stage_layers=null"]),
    Case("layers-indivisible", [*PIPED, "placement.trainer.first_stage_layers=10",
                                "placement.trainer.last_stage_layers=10"],
         ["placement.trainer.first_stage_layers=18", "placement.trainer.last_stage_layers=18"]),
    Case("layers-indivisible", [BIG, "placement.trainer.pp=4", "placement.trainer.first_stage_layers=5"],
         ["placement.trainer.first_stage_layers=9", "placement.trainer.last_stage_layers=9"]),
    Case("layers-indivisible", [BIG, "placement.trainer.tp=1", "placement.trainer.pp=8"],
         ["placement.trainer.first_stage_layers=6", "placement.trainer.last_stage_layers=6"]),
    Case("stage-without-indexer", [*SPARSE, "placement.trainer.first_stage_layers=15",
                                   "placement.trainer.last_stage_layers=15"],
         ["placement.trainer.first_stage_layers=14", "placement.trainer.last_stage_layers=16"]),
    Case("ep-indivisible", [*MOE, "placement.trainer.ep=3"], ["placement.trainer.ep=4"]),
    Case("ep-indivisible", [*MOE, "placement.trainer.ep=8", "placement.trainer.etp=2"], ["placement.trainer.ep=4"]),
    Case("ep-indivisible", [*MOE, "placement.trainer.etp=5"], ["placement.trainer.etp=2"]),
    Case("cp-unsupported", [*GDN, "placement.trainer.cp=2"], ["placement.trainer.cp=1"]),
]  # fmt: skip
