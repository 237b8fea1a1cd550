"""What the scripts here share: parts in processes of their own, one table at the end, the same as JSON.

A part is a function of a `Part` object, to which it gives rows as it goes: what it had found before it failed, or ran
out of time, is in the table with its error. Whatever a part leaves behind is ended, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import multiprocessing
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # this checkout's rlrun, also in the processes that are started from here
MARK = "RLRUN_BENCH_MARK"
"""Environment variable by which every process of a part, and of what it started, is found."""
RESERVE_S = 10.0
"""Kept from the budget to end what is late and to print the table."""
GIB, MIB = 2**30, 2**20
NOTHING = "-"


@dataclass
class Row:
    """One line of the table: what was measured, and beside what."""

    part: str
    what: str
    value: float | str | None
    unit: str = ""
    reference: float | None = None
    against: str = ""  # what the reference is

    @property
    def ratio(self) -> float | None:
        """Measured over reference."""
        if isinstance(self.value, str) or self.value is None or not self.reference:
            return None
        return self.value / self.reference


@dataclass(frozen=True)
class Options:
    """What the command line says, for every part."""

    tiny: bool
    steps: int
    offload: bool
    cuda_graph: bool
    work: str  # temporary folder of the script
    out: str | None  # folder for what is worth keeping


@dataclass
class Part:
    """Given to a part's function. `deadline` is on the clock of `time.monotonic`, which all processes here share."""

    name: str
    options: Options
    deadline: float
    path: str
    rows: list[Row] = field(default_factory=list)

    def row(
        self, what: str, value: float | str | None, unit: str = "", reference: float | None = None, against: str = ""
    ):
        row = Row(self.name, what, value, unit, reference, against)
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(asdict(row)) + "\n")
        say(f"  {self.name}: {what}  {shown(row.value, unit)}{f'  ({row.ratio:.2f}x {against})' if row.ratio else ''}")

    def left_s(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    def folder(self, name: str) -> Path:
        path = Path(self.options.work) / self.name / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def keep(self, source: Path, name: str) -> None:
        """Copies a small file to where it outlives the script."""
        if self.options.out is not None and source.exists():
            target = Path(self.options.out) / self.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


@dataclass(frozen=True)
class Kind:
    """A part that can be chosen: its function, and the seconds it takes on a GPU."""

    function: Callable[[Part], None]
    seconds: float


def say(text: str) -> None:
    print(text, flush=True)


def parse(doc: str, parts: Mapping[str, Kind], steps: int, tiny_steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model on this CPU, through the same code")
    parser.add_argument("--parts", default=",".join(parts), help=f"some of {','.join(parts)}")
    parser.add_argument(
        "--budget-s", type=float, default=540.0, help="seconds for everything; parts too late are not run"
    )
    parser.add_argument("--steps", type=int, help=f"steps of the main run, {steps} by default")
    parser.add_argument("--no-offload", action="store_true", help="trainer and engine stay on the GPU together")
    parser.add_argument("--no-cuda-graph", action="store_true", help="engines without CUDA graphs: a faster start")
    parser.add_argument("--json", help="file for the results; otherwise in the folder that $OUT names, if it does")
    asked = parser.parse_args()
    asked.parts = [name for name in asked.parts.split(",") if name]
    unknown = [name for name in asked.parts if name not in parts]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
    asked.steps = asked.steps or (tiny_steps if asked.tiny else steps)
    return asked


def main(script: str, doc: str, parts: Mapping[str, Kind], sizes: Callable[[bool], str]) -> int:
    """Runs the parts that were asked for. `sizes` says what they run on, tiny or not. Exit code 1 when one failed."""
    asked = parse(doc, parts, steps=20, tiny_steps=3)
    end = time.monotonic() + asked.budget_s
    out = os.environ.get("OUT")
    json_path = asked.json or (os.path.join(out, f"{script}.json") if out else None)
    work = tempfile.mkdtemp(prefix="rlrun-bench-")
    options = Options(asked.tiny, asked.steps, not asked.no_offload, not asked.no_cuda_graph, work, out)
    facts = machine() | {"sizes": sizes(asked.tiny)}
    say("\n".join(f"{name:<9} {value}" for name, value in facts.items()))
    rows: list[Row] = []
    signal.signal(signal.SIGTERM, _interrupt)
    resource_tracker.ensure_running()  # before the first mark, which it would otherwise carry to the end
    try:
        for name in asked.parts:
            rows += _attempt(script, name, parts[name], options, end)
            _write(json_path, facts, rows)
    except KeyboardInterrupt:
        rows.append(Row("all", "interrupted", "FAILED"))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _write(json_path, facts, rows)
    say(f"\n{table(rows)}")
    say(f"\nratio: measured over reference.  {asked.budget_s - end + time.monotonic():.0f} s in all")
    return 1 if any(row.value == "FAILED" for row in rows) else 0


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _write(path: str | None, facts: Mapping[str, str], rows: list[Row]) -> None:
    """After each part, so that a command that is cut off leaves what it had."""
    if path is None:
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    found = {"machine": facts, "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(found, f, indent=1)


def _attempt(script: str, name: str, kind: Kind, options: Options, end: float) -> list[Row]:
    left = end - time.monotonic() - RESERVE_S
    if left < (kind.seconds if not options.tiny else RESERVE_S):
        return [Row(name, f"not run: {max(left, 0):.0f} s left, it takes about {kind.seconds:.0f} s", None)]
    say(f"\n{name}")
    path = os.path.join(options.work, f"{name}.rows")
    part = Part(name, options, end - RESERVE_S, path)
    mark = uuid.uuid4().hex
    began = time.monotonic()
    with _environment({MARK: mark, "PYTHONPATH": python_path()}):
        process = multiprocessing.get_context("spawn").Process(target=_run, args=(script, part))
        process.start()
    try:
        process.join(left)
    finally:
        late = process.is_alive()
        left_behind = _end(process, mark)
    rows = _read(path)
    if late:
        rows.append(Row(name, f"not done after {time.monotonic() - began:.0f} s", "FAILED"))
    elif process.exitcode != 0 and not any(row.value == "FAILED" for row in rows):
        rows.append(Row(name, f"its process ended with code {process.exitcode}", "FAILED"))
    if left_behind and not late:
        rows.append(Row(name, f"left behind: {'; '.join(left_behind)[:90]}", "FAILED"))
    rows.append(Row(name, "seconds of this part", time.monotonic() - began, "s"))
    return rows


def _run(script: str, part: Part) -> None:
    """In the part's own process, which leads a group: what it starts dies with it."""
    os.setsid()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module = __import__(script)
    try:
        module.PARTS[part.name].function(part)
    except BaseException as e:
        traceback.print_exc()
        part.row(failure(e), "FAILED")
        sys.exit(1)


def failure(error: BaseException) -> str:
    """Kind, place and first line of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/site-packages/" not in f.filename] or frames
    said = (str(error).strip().splitlines() or [""])[0]
    at = f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}" if own else "?"
    return f"{type(error).__name__} at {at}: {said[:100]}"


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def python_path() -> str:
    """The repository and this folder first: runs import rewards from here."""
    return os.pathsep.join([str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def _read(path: str) -> list[Row]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [Row(**json.loads(line)) for line in f]


def _end(process: Any, mark: str) -> list[str]:
    """Ends a part's process, then all that carries its mark; returns what it had left running by itself."""
    if process.is_alive():
        process.terminate()
        process.join(RESERVE_S / 2)
    left = _settled(mark, 5.0)
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if process.is_alive():
        process.kill()
    process.join(5)
    return [f"{pid} {line[:60]}" for pid, line in left.items()]


def _settled(mark: str, wait_s: float) -> dict[int, str]:
    """Marked processes that are still there after a while: some end a moment after their parent."""
    end = time.monotonic() + wait_s
    while (found := marked(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def marked(value: str, name: str = MARK) -> dict[int, str]:
    """pid -> command line of every live process that inherited the variable, this one aside."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"{name}={value}".encode() not in (entry / "environ").read_bytes():
                continue
            if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            continue
    return found


def machine() -> dict[str, str]:
    """Without torch, whose CUDA context would count as memory that a run uses."""
    gpus = nvidia_smi("name,memory.total,driver_version")
    names = [", ".join(row) for row in gpus]
    versions = []
    for package in ("torch", "megatron-core", "sglang", "ray", "rlrun"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    return {
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, Python {platform.python_version()}",
        "GPUs": "; ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none",
        "software": ", ".join(versions),
    }


def nvidia_smi(fields: str) -> list[list[str]]:
    """One row a GPU; none where there is no driver."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in found.splitlines() if line.strip()]


def shown(value: float | str | None, unit: str = "") -> str:
    if value is None or isinstance(value, str):
        return value or NOTHING
    if math.isnan(value):
        return NOTHING
    if value and not 0.001 <= abs(value) < 1e6:
        text = f"{value:.2e}"
    else:
        text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".strip()


def table(rows: list[Row]) -> str:
    """Columns as wide as what is in them."""
    head = ("part", "what", "measured", "reference", "ratio", "reference is")
    lines = [head]
    for row in rows:
        ratio = f"{row.ratio:.3g}" if row.ratio is not None else NOTHING
        reference = shown(row.reference, row.unit)
        lines.append((row.part, row.what, shown(row.value, row.unit), reference, ratio, row.against or NOTHING))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
