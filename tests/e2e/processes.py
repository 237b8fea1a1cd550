"""Starting rlrun as a user does, watching its run folder, and finding every process it has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MARK = "RLRUN_TEST_MARK"
# A small, quick version of the quickstart: 32 samples a step, two optimizer steps each.
SMALL = [
    "+experiment=quickstart",
    "algo.prompts_per_rollout=8",
    "algo.group_size=4",
    "algo.groups_per_step=4",
    "eval.interval=null",
    "eval.before_train=false",
    "data.eval=null",
    "rollout.seeded=true",
    "checkpoint.digest=true",
    "checkpoint.keep=20",
]


@dataclass
class Command:
    """A running `rlrun`, marked so that its whole family can be found."""

    process: subprocess.Popen
    mark: str
    output_dir: Path
    log: Path
    began: float = field(default_factory=time.monotonic)

    def wait(self, deadline_s: float) -> int:
        return self.process.wait(timeout=deadline_s)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def run_dir(self) -> Path | None:
        found = sorted(p.parent for p in self.output_dir.glob("*/*/plan.json"))
        return found[-1] if found else None

    def family(self) -> dict[int, str]:
        """pid -> command line of every live process that inherited the mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"{MARK}={self.mark}".encode() not in (entry / "environ").read_bytes():
                    continue
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue
        return found


def start(args: list[str], output_dir: Path, log_name: str = "out.log") -> Command:
    output_dir.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    log = output_dir / log_name
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlrun", *args],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, MARK: mark},
            start_new_session=True,
            # A shell that runs the tests in the background has SIGINT ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    return Command(process, mark, output_dir, log)


def run(args: list[str], output_dir: Path, deadline_s: float = 280, log_name: str = "out.log") -> Command:
    command = start(args, output_dir, log_name)
    command.wait(deadline_s)
    return command


def wait_for(
    condition: Callable[[], bool], command: Command, deadline_s: float, what: str, poll_s: float = 0.2
) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert command.process.poll() is None, f"rlrun ended before {what}:\n{command.text[-3000:]}"
        assert time.monotonic() < end, f"no {what} within {deadline_s} s:\n{command.text[-3000:]}"
        time.sleep(poll_s)


def metrics(run_dir: Path | None) -> list[dict]:
    if run_dir is None or not (run_dir / "metrics.jsonl").exists():
        return []
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]


def wait_for_step(command: Command, step: int, deadline_s: float = 200) -> None:
    wait_for(lambda: any(r["step"] >= step for r in metrics(command.run_dir())), command, deadline_s, f"step {step}")


def assert_nothing_left(command: Command, deadline_s: float = 30) -> None:
    """Agents of a Ray that was killed look for their parent every few seconds, hence the deadline."""
    end = time.monotonic() + deadline_s
    while left := command.family():
        assert time.monotonic() < end, f"left behind: {left}"
        time.sleep(0.2)


def summary(command: Command) -> dict:
    run_dir = command.run_dir()
    assert run_dir is not None, command.text[-3000:]
    return json.loads((run_dir / "summary.json").read_text())
