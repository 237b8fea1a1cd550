"""`python -m rlrun` as a user starts it: watched from outside, and what it left in its folder, as rows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from _common import GIB, MIB, Part, marked, nvidia_smi, say

RUN_MARK = "RLRUN_BENCH_RUN"
POLL_S, FAMILY_S = 0.02, 1.0
SMALL_GIB = 0.01
WARM_UP = 2
"""First steps left out of medians: kernels are compiled, memory is allocated."""
PLANNED = {"logprobs": "logprob"}
"""Phases of a step by their metric -> by the plan's estimate of time, where the two names differ."""
MEMORY = {"generate": ("rollout",), "logprobs": ("logprob",), "train": ("train",), "sync": ("sync", "wake-up")}
MEMORY |= {"critic": ("train",), "values": ("logprob",), "save": ("save",)}
"""The same -> by the plan's estimate of memory."""


class GpuMemory:
    """What the driver says that each GPU holds, twenty times a second, in a thread. Empty where there is no driver.
    A context of our own would be part of what is measured, so this asks nvidia-smi, which says when it looked."""

    COMMAND = ("nvidia-smi", "--query-gpu=timestamp,index,memory.used", "--format=csv,noheader,nounits", "-lms", "50")

    def __init__(self) -> None:
        self.before = gpu_memory()
        self.samples: list[tuple[float, int, float]] = []  # time, GPU, GiB
        self._process: subprocess.Popen | None = None
        if self.before:
            by_line = ("stdbuf", "-oL") if shutil.which("stdbuf") else ()
            command = [*by_line, *self.COMMAND]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, lines: Iterable[str]) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):  # a line cut at the end
                self.samples.append(sample(line))

    def peak(self, spans: Sequence[tuple[float, float]], gpus: Collection[int] | None = None) -> float | None:
        """GiB above what was held before, on the fullest of these GPUs (of all), at the worst moment of these spans.
        None when no sample falls into them."""
        found = [
            used - self.before[gpu]
            for at, gpu, used in list(self.samples)
            if (gpus is None or gpu in gpus) and any(first <= at <= last for first, last in spans)
        ]
        return max(found, default=None)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)


def sample(line: str) -> tuple[float, int, float]:
    """`2026/11/30 23:19:51.123, 0, 1234`, in local time and MiB -> seconds since 1970, GPU, GiB."""
    at, index, used = line.split(",")
    return datetime.strptime(at.strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp(), int(index), int(used) * MIB / GIB


def gpu_memory() -> list[float]:
    """GiB in use on every GPU."""
    return [float(row[0]) * MIB / GIB for row in nvidia_smi("memory.used")]


@dataclass
class Run:
    """A run in progress, or at its end."""

    words: list[str]
    process: subprocess.Popen
    mark: str
    output_dir: Path
    log: Path
    began: float
    memory: GpuMemory
    arrivals: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)  # of all processes that it was seen to have

    @property
    def run_dir(self) -> Path | None:
        found = sorted(path.parent for path in self.output_dir.glob("*/*/plan.json"))
        return found[-1] if found else None

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def json(self, name: str) -> dict[str, Any]:
        assert self.run_dir is not None, f"no run folder: {self.text[-500:]}"
        return json.loads((self.run_dir / name).read_text())

    def rows(self) -> list[dict[str, Any]]:
        """Metrics of every training step."""
        return [row for _, row in self.arrivals if "perf/step_s" in row]

    def watch(self, deadline_s: float, until: Callable[[Run], bool] = lambda run: False) -> None:
        """Notes when each line of metrics comes, until the run ends or `until` says so. Ends the run and raises
        TimeoutError after `deadline_s`."""
        end, asked = time.monotonic() + deadline_s, 0.0
        while self.process.poll() is None and not until(self):
            self._look()
            if time.monotonic() > asked + FAMILY_S:
                asked = time.monotonic()
                self.pids |= self.family().keys()
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(f"the run was not done in {deadline_s:.0f} s: {last_line(self.text)}")
            time.sleep(POLL_S)
        self._look()

    def _look(self) -> None:
        path = self.run_dir / "metrics.jsonl" if self.run_dir is not None else None
        if path is None or not path.exists():
            return
        lines = path.read_text().splitlines()
        for line in lines[len(self.arrivals) :]:
            if line.endswith("}"):
                self.arrivals.append((time.time(), json.loads(line)))

    def kill(self) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)

    def family(self) -> dict[int, str]:
        """pid -> command line of what lives of it."""
        return marked(self.mark, RUN_MARK)

    def spans(self) -> dict[str, list[tuple[float, float]]]:
        """phase -> when it certainly ran, in every step: forward from the step's beginning, in the order in which the
        loop has noted its phases. Somewhere between them lie the moves of an offload, and moments; so a later phase
        counts only where it must have run however these are spread."""
        found: dict[str, list[tuple[float, float]]] = {}
        for arrived, row in self.arrivals:
            noted = phases(row)
            moved, at = noted.pop("offload", 0.0), arrived - row.get("perf/step_s", 0.0)
            between = moved + max(0.0, row.get("perf/step_s", 0.0) - moved - sum(noted.values()))
            for i, (name, seconds) in enumerate(noted.items()):
                first = at + (between if i else 0.0)
                if first < at + seconds:
                    found.setdefault(name, []).append((first, at + seconds))
                at += seconds
        return found


def phases(row: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step's phases, in their order."""
    aside = ("step", "save_background")
    times = {
        k[5:-2]: v for k, v in row.items() if k.startswith("perf/") and k.endswith("_s") and not k.endswith("per_s")
    }
    return {name: seconds for name, seconds in times.items() if name not in aside}


def start(part: Part, name: str, words: Sequence[str]) -> Run:
    """Starts `rlrun` with these words in a session of its own."""
    folder = part.folder(name)
    mark, log = uuid.uuid4().hex, folder / "out.log"
    memory = GpuMemory()
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlrun", *words, f"output_dir={folder}"],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, RUN_MARK: mark},
            start_new_session=True,
            # A shell that runs this in the background has SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    return Run(list(words), process, mark, folder, log, time.monotonic(), memory)


def finish(part: Part, run: Run, name: str, exit_code: int = 0) -> Run:
    """Waits for a run that was started, and copies its small files. Raises RuntimeError with what it said when it ends
    otherwise than expected."""
    try:
        run.watch(part.left_s())
    finally:
        run.memory.close()
        part.keep(run.log, f"{name}.log")
        if run.run_dir is not None:
            for file in ("metrics.jsonl", "summary.json", "plan.json", "error.log"):
                part.keep(run.run_dir / file, f"{name}.{file}")
            for file in (run.run_dir / "logs").glob("*.log"):
                part.keep(file, f"{name}.{file.name}")
    if run.process.returncode != exit_code:
        say(run.text[-3000:])
        raise RuntimeError(f"{name}: exit code {run.process.returncode}, not {exit_code}: {last_line(run.text)}")
    return run


def whole(part: Part, name: str, words: Sequence[str]) -> Run:
    """A run from its start to its end, whose checkpoints are then deleted."""
    run = finish(part, start(part, name, words), name)
    assert run.run_dir is not None
    shutil.rmtree(run.run_dir / "checkpoints", ignore_errors=True)
    return run


def last_line(text: str) -> str:
    """What a failed run said first: its error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "failed"))]
    return (errors or lines or ["nothing"])[0 if errors else -1][:200]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def warm(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    return rows[WARM_UP:] if len(rows) > 2 * WARM_UP else rows[-1:]


def label(part: Part, name: str) -> str:
    """What a row of one run begins with; nothing when the part has but this one."""
    return "" if name == part.name else f"{name}: "


def report(part: Part, run: Run, name: str) -> None:
    """Rows of a finished run: what it learned, how far trainer and engine were apart, where time and memory went."""
    learning(part, run, name)
    times(part, run, name)
    memory(part, run, name)


def learning(part: Part, run: Run, name: str) -> None:
    rows, summary = run.rows(), run.json("summary.json")
    part.row(f"{label(part, name)}steps", summary["steps"], "", run.json("plan.json")["num_steps"], "steps planned")
    rewards = [row["rollout/reward_mean"] for row in rows]
    first, last = summary["first_reward_mean"], summary["last_reward_mean"]
    part.row(f"{label(part, name)}reward, last steps", last, "", first, "first steps")
    part.row(f"{label(part, name)}reward of every step", " ".join(f"{reward:.2f}" for reward in rewards))
    for key, what in (("", "mean"), ("_max", "largest")):
        gaps = [row[f"train/train_rollout_logprob_abs_diff{key}"] for row in rows]
        part.row(f"{label(part, name)}|dlogp| trainer - engine, {what}, worst step", max(gaps), "nats")
    canaries = [row["sync/canary_abs_diff_max"] for row in rows if "sync/canary_abs_diff_max" in row]
    if canaries:
        part.row(f"{label(part, name)}canary, largest |dlogp|, worst step", max(canaries), "nats")
    if "train/value_loss" in rows[-1]:
        losses = [row["train/value_loss"] for row in rows if "train/value_loss" in row]
        part.row(f"{label(part, name)}value loss, last step", losses[-1], "", losses[0], "first step")


def times(part: Part, run: Run, name: str) -> None:
    rows, plan, summary = warm(run.rows()), run.json("plan.json"), run.json("summary.json")
    planned = {p["phase"]: p["seconds"] for p in plan["time"]["phases"]} if plan["time"] else {}
    for phase in dict.fromkeys(phase for row in run.rows() for phase in phases(row)):
        found = [phases(row)[phase] for row in rows if phase in phases(row)]
        estimate = planned.get(PLANNED.get(phase, phase))
        part.row(f"{label(part, name)}{phase}", median(found), "s", estimate, "plan" if estimate else "")
    step = [row["perf/step_s"] - row.get("perf/save_s", 0.0) for row in rows]
    estimate = plan["time"]["step_s"] if plan["time"] else None
    part.row(f"{label(part, name)}whole step, without saving", median(step), "s", estimate, "plan" if estimate else "")
    part.row(f"{label(part, name)}start-up", summary["startup_s"], "s")
    part.row(f"{label(part, name)}whole run", summary["wall_s"], "s")


def generated_per_s(run: Run) -> float:
    return median([row["perf/response_tokens_per_s"] for row in warm(run.rows())])


def trained_per_s(run: Run, prompt_tokens: int) -> float:
    """Tokens of prompts and responses a second of the optimizer steps."""
    rows = warm(run.rows())
    each = [row["rollout/samples"] * (prompt_tokens + row["rollout/response_tokens_mean"]) for row in rows]
    return median([tokens / row["perf/train_s"] for tokens, row in zip(each, rows, strict=True)])


def memory(part: Part, run: Run, name: str) -> None:
    """What each phase needed at its worst moment, as the run measures it, and what the driver saw on the GPU, both
    beside the plan. The driver counts what torch's allocator keeps for later, and looks twenty times a second."""
    planned, spans = plan_memory(run.json("plan.json")), run.spans()

    def beside(phase: str, what: str, value: float | None) -> None:
        estimate = next((planned[n] for n in MEMORY.get(phase, ()) if n in planned), None)
        if value is not None or estimate is not None:
            part.row(f"{label(part, name)}{what}", value, "GiB", estimate, "plan" if estimate else "")

    for phase in dict.fromkeys(phase for row in run.rows() for phase in phases(row)):
        gpus = gpus_of(run.json("plan.json"), phase)
        beside(phase, f"GPU memory by the driver, {phase}", run.memory.peak(spans.get(phase, []), gpus))
    for key in dict.fromkeys(key for row in run.rows() for key in row if key.startswith("memory/")):
        phase = key.removeprefix("memory/").removesuffix("_gib")
        what = f"GPU memory needed, {phase}" if phase in MEMORY else key
        beside(phase, what, max(row[key] for row in run.rows() if key in row))


def gpus_of(plan: dict[str, Any], phase: str) -> set[int]:
    """The GPUs that the plan speaks of in a phase: of the engines while they generate, else of the trainer."""
    engines = {slot for engine in plan["engines"] for slot in engine["slots"]}
    chosen = engines if phase == "generate" else plan["train"]["slots"]
    return {plan["slots"][slot]["gpu"] for slot in chosen}


def plan_memory(plan: dict[str, Any]) -> dict[str, float]:
    """phase -> GiB of one GPU, as planned."""
    found = plan["memory"]
    return {phase["phase"]: phase["total_bytes"] / GIB for phase in found["phases"]} if found else {}


def left_behind(part: Part, run: Run, name: str, shm_before: set[str], wait_s: float = 25.0) -> None:
    """Rows that say what the ended run has left: processes, GPU memory, shared memory. Each should be 0."""
    end = time.monotonic() + wait_s
    while (family := run.family()) and time.monotonic() < end:
        time.sleep(0.2)
    part.row(f"{label(part, name)}processes left", len(family))
    for pid, line in list(family.items())[:3]:
        part.row(f"{label(part, name)}left {pid}", line[:70])
    ray = [line for line in family.values() if "ray" in line]
    part.row(f"{label(part, name)}processes of Ray left", len(ray))
    if run.memory.before:
        while (more := _more_than(run.memory.before)) > SMALL_GIB and time.monotonic() < end:
            time.sleep(0.5)
        part.row(f"{label(part, name)}GPU memory not given back", more * GIB / MIB, "MiB")
    files = sorted(file for file in shared_memory() - shm_before if not somebody_elses(file, run.pids))
    part.row(f"{label(part, name)}files left in /dev/shm", len(files))
    for file in files[:3]:
        part.row(f"{label(part, name)}left {file}", None)


def _more_than(before: list[float]) -> float:
    return max(now - then for now, then in zip(gpu_memory(), before, strict=True))


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return set(os.listdir("/dev/shm"))


def somebody_elses(file: str, pids: set[int]) -> bool:
    """Whether the name has a process number in it, which is none of these, or another process maps the file. What is
    left counts: who made it is not known."""
    numbers = re.findall(r"(?<=[-_])\d+(?=[-_])", file)
    if numbers:
        return not any(int(number) in pids for number in numbers)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if int(maps.parent.name) not in pids and f"/dev/shm/{file}" in maps.read_text(errors="replace"):
                return True
    return False
