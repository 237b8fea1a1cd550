"""The scripts that measure on GPUs: what they compute from a run's files, and one of their parts on this CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "gpu"))
import _common
import _runs

SCRIPTS = Path(_common.__file__).parent


class Sampled(_runs.GpuMemory):
    """Samples as given."""

    def __init__(self, before, samples):
        self.before, self.samples, self._process = before, samples, None


def step(arrived, **seconds):
    total = seconds.pop("step")
    row = {f"perf/{name}_s": value for name, value in seconds.items()}
    return arrived, {**row, "perf/response_tokens_per_s": 5.0, "perf/step_s": total}


def run_of(*arrivals):
    return _runs.Run([], None, "", Path(), Path(), 0.0, None, list(arrivals))


def test_phases_lie_one_after_the_other_in_a_step():
    run = run_of(step(110.0, generate=4.0, train=5.0, sync=1.0, step=10.0))
    assert run.spans() == {"generate": [(100.0, 104.0)], "train": [(104.0, 109.0)], "sync": [(109.0, 110.0)]}


def test_with_an_offload_a_phase_counts_only_where_it_must_have_run():
    """Two seconds of moves lie somewhere between the phases, and half a second that nobody noted."""
    run = run_of(step(112.5, generate=4.0, train=5.0, sync=1.0, offload=2.0, step=12.5))
    assert run.spans() == {"generate": [(100.0, 104.0)], "train": [(106.5, 109.0)]}


def test_memory_is_that_of_the_fullest_gpu_above_what_was_there_before():
    memory = Sampled([1.0, 2.0], [(1.0, 0, 30.0), (1.5, 0, 5.0), (1.5, 1, 9.0), (3.0, 1, 50.0)])
    assert memory.peak([(1.2, 2.0)]) == 7.0
    assert memory.peak([(0.5, 1.1), (1.2, 2.0)]) == 29.0
    assert memory.peak([(0.5, 1.1), (1.2, 2.0)], gpus={1}) == 7.0
    assert memory.peak([(2.0, 2.5)]) is None


def test_samples_are_taken_when_the_driver_says():
    at, gpu, used = _runs.sample("2026/11/30 23:19:51.250, 1, 2048\n")
    assert (time.localtime(at)[:6], at % 1, gpu, used) == ((2026, 11, 30, 23, 19, 51), 0.25, 1, 2.0)


def test_apart_the_trainer_is_measured_on_its_own_gpus():
    slots = [{"gpu": gpu} for gpu in (4, 5, 6)]
    plan = {"slots": slots, "train": {"slots": [0, 1]}, "engines": [{"slots": [2]}]}
    assert _runs.gpus_of(plan, "generate") == {6}
    assert _runs.gpus_of(plan, "train") == {4, 5}


def test_a_ratio_is_measured_over_reference():
    rows = [_common.Row("p", "speed", 30.0, "GB/s", 40.0, "copy"), _common.Row("p", "none", None, "s", 2.0, "plan")]
    assert [row.ratio for row in rows] == [0.75, None]
    head, *lines = _common.table(rows).splitlines()
    assert head.split()[:5] == ["part", "what", "measured", "reference", "ratio"]
    assert lines[0].split() == ["p", "speed", "30", "GB/s", "40", "GB/s", "0.75", "copy"]
    assert math.isclose(rows[0].ratio, 0.75)


def test_files_with_the_number_of_another_process_are_somebody_elses():
    assert _runs.somebody_elses("sem.loky-77-abc", {7, 8})
    assert not _runs.somebody_elses("sem.loky-7-abc", {7, 8})
    assert not _runs.somebody_elses("sglang_loads_0b61_486e.shm", {7})


def test_a_part_that_does_not_fit_into_the_budget_is_not_started(tmp_path):
    options = _common.Options(False, 1, True, True, str(tmp_path), None)
    kind = _common.Kind(lambda part: pytest.fail("started"), seconds=100)
    (row,) = _common._attempt("two_gpus", "sync", kind, options, time.monotonic() + 60)
    assert row.value is None
    assert "not run: 50 s left, it takes about 100 s" in row.what or "not run: 49 s" in row.what


@pytest.mark.engines
def test_layouts_have_the_gradients_of_one_process(tmp_path):
    """The cheapest part, whole: processes of its own, the table, the JSON, and differences far below the goal."""
    command = [sys.executable, str(SCRIPTS / "two_gpus.py"), "--tiny", "--parts", "parity"]
    environment = {**os.environ, "OUT": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = json.loads((tmp_path / "two_gpus.json").read_text())["rows"]
    differences = [row for row in rows if row["against"] == "goal"]
    assert len(differences) == 4 * 5
    assert all(row["ratio"] < 1 for row in differences), differences
    assert "cp 2: gradient of one weight, worst" in done.stdout
