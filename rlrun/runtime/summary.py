"""How a run ended: summary.json for scripts, a few lines with the next commands for people."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from rlrun.errors import RlrunError, RunFailed
from rlrun.plan.render import render_failure, render_problems
from rlrun.plan.types import RunPlan
from rlrun.runtime.gauge import against
from rlrun.runtime.progress import duration, shown
from rlrun.tracking.base import RunStatus
from rlrun.tracking.metrics import LOSS, REWARD

REWARD_WINDOW = 5
"""First and last steps whose mean reward (SFT: loss) is reported; half of them when a run has fewer than twice as
many."""


@dataclass
class Outcome:
    plan: RunPlan
    run_dir: str
    began: float
    restored_step: int = 0
    status: str = "failed"  # finished | stopped | failed | killed
    exit_code: int = 1
    step: int = 0
    startup_s: float | None = None
    wall_s: float = 0.0
    checkpoint: str | None = None
    hf_checkpoint: str | None = None
    mlflow_run_id: str | None = None
    error: BaseException | None = None

    def fail(self, status: str, exit_code: int, error: BaseException) -> None:
        self.status, self.exit_code, self.error = status, exit_code, error

    @property
    def mlflow_status(self) -> RunStatus:
        return {"finished": "FINISHED", "stopped": "FINISHED", "killed": "KILLED"}.get(self.status, "FAILED")  # type: ignore[return-value]


def read_metrics(run_dir: str) -> list[dict[str, float]]:
    """Every step of metrics.jsonl; a last line cut by a crash is left out."""
    path = os.path.join(run_dir, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    rows = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def summarise(outcome: Outcome) -> dict[str, Any]:
    from rlrun.runtime.preflight import versions

    rows = read_metrics(outcome.run_dir)
    rewards = [row[REWARD] for row in rows if REWARD in row]
    evals = [row["eval/reward_mean"] for row in rows if "eval/reward_mean" in row]
    losses = [row[LOSS] for row in rows if LOSS in row] if outcome.plan.algo.supervised else []
    window = max(1, min(REWARD_WINDOW, len(rewards or losses) // 2))
    error = outcome.error
    return {
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "name": outcome.plan.name,
        "steps": outcome.step,
        "num_steps": outcome.plan.num_steps,
        "resumed_from_step": outcome.restored_step or None,
        "wall_s": round(outcome.wall_s, 2),
        "startup_s": round(outcome.startup_s, 2) if outcome.startup_s is not None else None,
        "reward_window": window,
        "first_reward_mean": _mean(rewards[:window]),
        "last_reward_mean": _mean(rewards[-window:]),
        "first_loss_mean": _mean(losses[:window]),
        "last_loss_mean": _mean(losses[-window:]),
        "eval_reward_first": evals[0] if evals else None,
        "eval_reward_last": evals[-1] if evals else None,
        "memory_gib": against(outcome.plan.memory, rows),
        "config_hash": outcome.plan.config_hash,
        "versions": versions(),
        "mlflow_uri": outcome.plan.tracking.uri if outcome.plan.tracking else None,
        "mlflow_run_id": outcome.mlflow_run_id,
        "checkpoint": outcome.checkpoint,
        "hf_checkpoint": outcome.hf_checkpoint,
        "error": None if error is None else {"type": type(error).__name__, "message": str(error)},
    }


def write_summary(outcome: Outcome) -> None:
    path = os.path.join(outcome.run_dir, "summary.json")
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        json.dump(summarise(outcome), f, indent=1)
        f.write("\n")
    os.replace(path + ".tmp", path)


def print_outcome(outcome: Outcome) -> None:
    """The result on stdout, an error on stderr."""
    summary = summarise(outcome)
    run_dir = shown(outcome.run_dir)
    if isinstance(outcome.error, RlrunError):
        print(render_problems(outcome.error.problems, stream=sys.stderr), file=sys.stderr)
        return
    if outcome.error is not None:
        print("\n".join(_error_lines(outcome, run_dir)), file=sys.stderr)
        return
    word = {"finished": "Finished", "stopped": "Stopped as asked"}[outcome.status]
    startup = f" ({duration(outcome.startup_s)} of it start-up)" if outcome.startup_s is not None else ""
    steps = f"step {outcome.step} of {outcome.plan.num_steps}"
    lines = [f"\n{word}: {outcome.plan.name}, {steps}, {duration(outcome.wall_s)}{startup}"]
    trend = learned(summary)
    if trend is not None:
        name, change = trend
        lines.append(f"  {name:<10}  {change}   mean of the first and the last {_steps(summary['reward_window'])}")
    if summary["eval_reward_first"] is not None:
        lines.append(f"  evaluation  {summary['eval_reward_first']:.3f} -> {summary['eval_reward_last']:.3f}")
    if summary["memory_gib"]:
        lines.append(f"  GPU memory  {_memory(summary['memory_gib'])}")
    lines.append(f"  run         {run_dir}   summary.json, metrics.jsonl, logs/")
    if outcome.checkpoint:
        lines.append(f"  checkpoint  {shown(outcome.checkpoint)}")
    if outcome.hf_checkpoint:
        lines.append(f"  weights     {shown(outcome.hf_checkpoint)}   Hugging Face format")
    lines += ["Next", *_next_commands(outcome, run_dir)]
    print("\n".join(lines))


def learned(summary: dict[str, Any]) -> tuple[str, str] | None:
    """What is to go up or down (reward; the loss of given responses), and from where to where. None without a step."""
    for name in ("reward", "loss"):
        first, last = summary[f"first_{name}_mean"], summary[f"last_{name}_mean"]
        if first is not None:
            return name, f"{first:.3f} -> {last:.3f}"
    return None


def _memory(phases: dict[str, dict[str, float]]) -> str:
    """The phase that took most, and what the plan had said of it."""
    name, worst = max(phases.items(), key=lambda item: item[1]["measured"])
    return f"{worst['measured']:.1f} GiB in {name}, planned {worst['planned']:.1f}"


def mlflow_command(uri: str) -> str:
    if uri.startswith("sqlite:///"):
        uri = "sqlite:///" + shown(uri.removeprefix("sqlite:///"))
    return f"  mlflow ui --backend-store-uri {uri}"


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"


def _next_commands(outcome: Outcome, run_dir: str) -> list[str]:
    commands = []
    if outcome.status != "finished" and outcome.checkpoint:
        commands.append(f"  rlrun resume {run_dir}")
    if outcome.plan.tracking is not None:
        commands.append(mlflow_command(outcome.plan.tracking.uri))
    if outcome.status == "finished":
        name = outcome.plan.experiment or outcome.plan.name
        lr = outcome.plan.algo.optimizer.lr
        commands.append(f"  rlrun -m +experiment={name} algo.lr={lr / 2:g},{lr:g}")
        if outcome.plan.algo.supervised and outcome.hf_checkpoint:
            start = f"model.init=pretrained model.path={shown(outcome.hf_checkpoint)}"
            alphabet = " model.alphabet=null" if outcome.plan.model.alphabet is not None else ""
            commands.append(f"  rlrun plan +experiment=NAME {start}{alphabet}  # reinforcement learning from here")
    return commands


def _error_lines(outcome: Outcome, run_dir: str) -> list[str]:
    error = outcome.error
    at = f"step {outcome.step + 1} of {outcome.plan.num_steps}" if outcome.startup_s is not None else "starting"
    if isinstance(error, RunFailed):
        lines = [render_failure(error, sys.stderr)]
    else:
        lines = ["interrupted; every process of the run is ended"]
    lines += ["", f"  while   {at}", f"  run     {run_dir}", f"  logs    {os.path.join(run_dir, 'logs')}"]
    if outcome.checkpoint:
        lines += ["", f"To go on from the last checkpoint: rlrun resume {run_dir}"]
    else:
        lines.append("  saved   nothing yet: start it again")
    return lines
