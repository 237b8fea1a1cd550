"""Supervised fine-tuning: what is wrong with it, and the change that cures it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from case import QUICK, Case

SFT = "+experiment=quickstart_sft"
ONE_ROW = ["data.train.path=rows.jsonl", "algo.prompts_per_rollout=1", "algo.groups_per_step=1"]


def row(response):
    def write(folder: Path) -> None:
        (folder / "rows.jsonl").write_text(json.dumps({"prompt": "12", "response": response}) + "\n")

    return write


CASES = [
    Case("sft-needs-train-only", [SFT, "placement=cpu_1"], ["placement.mode=train_only"]),
    Case("sft-group-size", [SFT, "algo.group_size=8"], ["algo.group_size=1"]),
    Case("missing-value", [SFT, "data.train.response_key=null"], ["data.train.response_key=response"]),
    Case("missing-value", [QUICK, "reward=null"], ["reward.function=rlrun.agents.rewards:position_match"]),
    Case("inactive-key", [QUICK, "data.train.response_key=label"], ["data.train.response_key=null"]),
    Case("inactive-key", [SFT, "reward.function=rlrun.agents.rewards:position_match"], ["reward=null"]),
    Case("inactive-key", [SFT, "data.train.label_key=response"], ["data.train.label_key=label"]),
    Case("inactive-key", [SFT, "algo.clip_high=0.28"], ["algo.clip_high=0.2"]),
    Case("inactive-key", [SFT, "rollout.overlong=mask"], ["rollout.overlong=none"]),
    Case("inactive-key", [SFT, "dynamic_sampling.max_refills=1"], ["dynamic_sampling.max_refills=3"]),
    Case("inactive-key", [SFT, "async_mode=one_step"], ["async_mode=sync"]),
    Case("inactive-key", [SFT, "data.eval.path=${recipes:quickstart/eval.jsonl}"], ["data.eval=null"]),
    Case("malformed-jsonl", [SFT, "data.train.response_key=answer"], ["data.train.response_key=response"]),
    Case("malformed-jsonl", [SFT, *ONE_ROW], prepare=row(""), repair=row("21")),
    Case("unknown-character", [SFT, *ONE_ROW], prepare=row("x"), repair=row("21")),
]
