"""Server groups, frozen models, external servers, modes and nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from case import BIG, QUICK, Case

PD = "+experiment=qwen3_pd"
SPLIT = "placement=split_8gpu"
TRAIN = "placement=train_8gpu"
GROUPS = "placement.rollout.server_groups"
EXTERNAL = "placement.rollout.external"
JUDGE = "rollout.models={judge: {path: Qwen/Qwen3-8B}}"
WITH_JUDGE = f"{GROUPS}=[{{type: regular, gpus: 2}}, {{type: regular, gpus: 2, model: judge}}]"
SIX = ["placement.trainer.gpus=6", "placement.rollout.gpus=6"]
NODE_7 = "http://node7:30000"
GRADED = "reward.function=rlrun.agents.judges:graded"
WITH_JUDGE_ON_CPU = WITH_JUDGE.replace("gpus: 2", "gpus: 1")
ON_CPU = [
    QUICK,
    "placement.mode=disaggregated",
    "placement.gpus_per_node=3",
    "placement.rollout.gpus=2",
    "weight_sync.transport=distributed",
]


def small_judge(folder: Path) -> None:
    _write_judge(folder, {"model_type": "llama", "max_position_embeddings": 4096})


def sparse_judge(folder: Path) -> None:
    _write_judge(folder, {"model_type": "glm_moe_dsa", "max_position_embeddings": 4096, "index_topk": 128})


def _write_judge(folder: Path, config: dict) -> None:
    (folder / "judge").mkdir(exist_ok=True)
    (folder / "judge" / "config.json").write_text(json.dumps(config))


CASES = [
    Case("server-groups-total", [PD, "placement.rollout.gpus=3"], ["placement.rollout.gpus=4"]),
    Case("group-name-taken", [PD, f"+{GROUPS}.0.name=a", f"+{GROUPS}.1.name=a"], [f"{GROUPS}.1.name=a-2"]),
    Case("regular-mixed-with-pd", [PD, f"{GROUPS}.0.type=regular"], [f"{GROUPS}.1.type=regular"]),
    Case("pd-one-sided", [PD, f"{GROUPS}=[{{type: decode, gpus: 4}}]"], [f"{GROUPS}.0.type=regular"]),
    Case(
        "encoder-alone",
        [PD, JUDGE, f"{GROUPS}=[{{type: regular, gpus: 2}}, {{type: encoder, gpus: 2, model: judge}}]"],
        [f"{GROUPS}.1.type=regular"],
    ),
    Case(
        "group-type-needs-gpu",
        [
            QUICK,
            "placement.gpus_per_node=2",
            "placement.rollout.gpus=2",
            f"{GROUPS}=[{{type: prefill, gpus: 1}}, {{type: decode, gpus: 1}}]",
        ],
        [f"{GROUPS}.0.type=regular", f"{GROUPS}.1.type=regular"],
    ),
    Case(
        "encoder-without-images",
        [PD, f"{GROUPS}=[{{type: regular, gpus: 2}}, {{type: encoder, gpus: 2}}]"],
        [f"{GROUPS}.1.type=regular"],
    ),
    Case("policy-without-engines", [PD, f"{GROUPS}=[{{type: placeholder, gpus: 4}}]"], [f"{GROUPS}.0.type=regular"]),
    Case(
        "policy-without-engines",
        [PD, JUDGE, f"{GROUPS}=[{{type: regular, gpus: 4, model: judge}}]"],
        [f"{GROUPS}.0.model=policy"],
    ),
    Case("unknown-served-model", [PD, WITH_JUDGE], [f"{GROUPS}.1.model=policy"]),
    Case("reserved-model-name", [BIG, "rollout.models={policy: {path: Qwen/Qwen3-8B}}"]),
    Case("served-model-without-engines", [BIG, JUDGE]),
    Case("served-model-unused", [PD, WITH_JUDGE, JUDGE], ["reward.function=rlrun.agents.judges:graded"]),
    Case(
        "served-context",
        [PD, WITH_JUDGE, "rollout.models={judge: {path: ./judge, context_length: 8192}}", GRADED],
        ["rollout.models.judge.context_length=4096"],
        prepare=small_judge,
    ),
    Case(
        "served-context",
        [*ON_CPU, WITH_JUDGE_ON_CPU, "rollout.models={judge: {path: ./judge, context_length: null}}", GRADED],
        ["rollout.models.judge.context_length=128"],
        prepare=sparse_judge,
    ),
    Case(
        "external-family",
        [
            "+experiment=glm4_7_flash_ppo",
            "placement.mode=disaggregated",
            "weight_sync.transport=distributed",
            f"{EXTERNAL}=[{{url: '{NODE_7}'}}]",
        ],
    ),
    Case(
        "served-model-not-found",
        [PD, WITH_JUDGE, "rollout.models={judge: {path: Qwen/Qwen3-8B/}}"],
        ["rollout.models.judge.path=Qwen/Qwen3-8B"],
    ),
    Case("served-model-not-found", [PD, WITH_JUDGE, "rollout.models={judge: {path: ./nowhere}}"]),
    Case("unknown-key", [PD, f"{GROUPS}.0.sglang={{max_running_request: 8}}"]),
    Case(
        "override-not-allowed",
        [PD, f"{GROUPS}.0.sglang={{max_running_requests: 0}}"],
        [f"{GROUPS}.0.sglang.max_running_requests=1"],
    ),
    Case("owned-argument", [PD, f"{GROUPS}.0.sglang={{tp_size: 2}}"]),
    Case(
        "kv-cache-too-small",
        [PD, f"{GROUPS}.0.sglang={{max_total_tokens: 64}}"],
        [f"{GROUPS}.0.sglang.max_total_tokens=5128"],
    ),
    Case(
        "external-url",
        [PD, JUDGE, f"{EXTERNAL}=[{{url: 'node7:30000', model: judge}}]"],
        [f"{EXTERNAL}.0.url='{NODE_7}'"],
    ),
    Case(
        "external-url",
        [PD, JUDGE, f"{EXTERNAL}=[{{url: 'http://node7', model: judge}}]"],
        [f"{EXTERNAL}.0.url='{NODE_7}'"],
    ),
    Case(
        "external-twice",
        [PD, JUDGE, f"{EXTERNAL}=[{{url: '{NODE_7}', model: judge}}, {{url: '{NODE_7}/', model: judge}}]"],
        [f"{EXTERNAL}.1.url='http://node8:30000'"],
    ),
    Case(
        "engine-memory-too-small",
        [BIG, f"{GROUPS}=[{{type: regular, gpus: 8, sglang: {{mem_fraction_static: 0.08}}}}]"],
        [f"{GROUPS}.0.sglang.mem_fraction_static=0.15"],
    ),
    Case("external-mixed", [PD, f"{EXTERNAL}=[{{url: '{NODE_7}'}}]"]),
    Case(
        "external-colocated",
        [BIG, f"{EXTERNAL}=[{{url: '{NODE_7}'}}]"],
        ["placement.mode=disaggregated", "weight_sync.transport=distributed"],
    ),
    Case("engine-pp-indivisible", [BIG, SPLIT, "placement.rollout.pp=3"], ["placement.rollout.pp=2"]),
    Case(
        "engine-pp-indivisible",
        [QUICK, "placement.gpus_per_node=8", *(f"placement.rollout.{k}=8" for k in ("gpus", "gpus_per_engine", "pp"))],
        ["placement.rollout.pp=1"],
    ),
    Case(
        "engine-dp-indivisible", [BIG, SPLIT, "placement.rollout.dp_attention=4"], ["placement.rollout.dp_attention=2"]
    ),
    Case(
        "engine-ep-indivisible",
        [BIG, "model=qwen3_30b_a3b", SPLIT, "placement.rollout.ep=4"],
        ["placement.rollout.ep=2"],
    ),
    Case(
        "engine-crosses-nodes",
        [BIG, SPLIT, "placement.num_nodes=3", "placement.rollout.gpus=16", "placement.rollout.gpus_per_engine=16"],
        ["placement.rollout.gpus_per_engine=4"],
    ),
    Case(
        "engine-crosses-nodes",
        [PD, *SIX, "placement.num_nodes=2", f"{GROUPS}.0.gpus=4", f"{GROUPS}.0.gpus_per_engine=4"],
        [f"{GROUPS}.0.gpus_per_engine=2"],
    ),
    Case(
        "engines-indivisible",
        [PD, f"{GROUPS}.0.gpus_per_engine=4"],
        [f"{GROUPS}.0.gpus_per_engine=2"],
    ),
    Case("inactive-key", [PD, "placement.rollout.gpus_per_engine=2"], ["placement.rollout.gpus_per_engine=1"]),
    Case("inactive-key", [BIG, TRAIN, "placement.rollout.gpus=4"], ["placement.rollout.gpus=8"]),
    Case("inactive-key", [BIG, TRAIN, "rollout.port=31000"], ["rollout.port=null"]),
    Case("inactive-key", [QUICK, "placement.cpus_per_node=8"], ["placement.cpus_per_node=null"]),
    Case("nothing-to-evaluate", [QUICK, "placement.mode=rollout_only", "eval.interval=null"], ["eval.interval=1"]),
    Case("too-many-gpus", [BIG, "placement.reserved=[{node: 0, gpus: [7], what: judge}]"], ["placement.num_nodes=2"]),
    Case(
        "reserved-outside",
        [BIG, *SIX, "placement.reserved=[{node: 1, gpus: [0], what: judge}]"],
        ["placement.reserved.0.node=0"],
    ),
    Case(
        "reserved-outside",
        [BIG, *SIX, "placement.reserved=[{node: 0, gpus: [7, 8], what: judge}]"],
        ["placement.reserved.0.gpus=[7]"],
    ),
    Case("reserved-twice", [BIG, *SIX, "placement.reserved=[{node: 0, gpus: [7, 7], what: judge}]"]),
    Case("too-few-cpus", [BIG, "placement.cpus_per_node=16"], ["placement.cpus_per_node=17"]),
]
