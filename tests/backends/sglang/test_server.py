"""Owned processes, tried on small Python programs instead of servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rlrun.backends.sglang.server import OwnedProcess, RouterProcess, ServerProcess, _wait_until, choose_port
from rlrun.errors import RunFailed
from rlrun.plan.types import RouterPlan

DEADLINE_S = 20.0

# Starts a child that ignores SIGTERM, says so, and sleeps.
FAMILY = """
import subprocess, sys, time
from rlrun.backends.sglang.owner import die_with_owner
die_with_owner()
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
time.sleep(600)
"""

# Never lets go of the interpreter lock, as the router does.
BUSY = """
import ctypes
from rlrun.backends.sglang.owner import die_with_owner
die_with_owner()
print("ready", flush=True)
ctypes.PyDLL(None).sleep(600)
"""

OWNER = """
import os, sys, time
from pathlib import Path
from rlrun.backends.sglang.server import OwnedProcess
process = OwnedProcess("engine 0", Path(sys.argv[1]))
process.spawn([sys.executable, "-c", sys.argv[2]], dict(os.environ))
print(process.pid, flush=True)
time.sleep(600)
"""


def spawn(tmp_path: Path, program: str) -> OwnedProcess:
    process = OwnedProcess("engine 0", tmp_path / "logs" / "engine_0.log")
    process.spawn([sys.executable, "-c", program], dict(os.environ))
    return process


def eventually(what, deadline_s: float = DEADLINE_S):
    end = time.monotonic() + deadline_s
    while not (value := what()):
        assert time.monotonic() < end, "deadline"
        time.sleep(0.02)
    return value


def group(pid: int) -> list[int]:
    """Living members of a process group."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if os.getpgid(process.pid) == pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except ProcessLookupError:
            pass
    return found


def is_ready(log: Path) -> bool:
    return log.exists() and "ready" in log.read_text()


@pytest.mark.parametrize("grace_s", [0.0, 0.5])
def test_stop_leaves_nothing_of_the_group(tmp_path, grace_s):
    process = spawn(tmp_path, FAMILY)
    try:
        eventually(lambda: is_ready(process.log_path))
        assert len(group(process.pid)) == 3  # leader, watcher, deaf child
    finally:
        process.stop(grace_s)
    assert group(process.pid) == []
    assert not process.alive()
    process.stop()  # again does nothing


# Shared memory as an engine leaves it: a file that it maps, and a semaphore with its number.
SHARING = """
import mmap, os, time
kept = []
for path in (f"/dev/shm/sglang_loads_{os.getpid()}_test.shm", f"/dev/shm/sem.loky-{os.getpid()}-test"):
    with open(path, "w+b") as f:
        f.truncate(4096)
        kept.append(mmap.mmap(f.fileno(), 4096))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("crashes", [False, True])
def test_stop_takes_away_shared_memory_also_after_a_crash(tmp_path, crashes):
    process = spawn(tmp_path, SHARING)
    _wait_until(process, lambda: "ready" in process.log_path.read_text(), DEADLINE_S)
    files = [f"/dev/shm/sglang_loads_{process.pid}_test.shm", f"/dev/shm/sem.loky-{process.pid}-test"]
    assert all(map(os.path.exists, files))
    if crashes:
        os.kill(process.pid, signal.SIGKILL)
        process.wait_exit()
    process.stop()
    assert not any(map(os.path.exists, files))


@pytest.mark.parametrize("program", [FAMILY, BUSY])
def test_a_killed_owner_takes_its_processes_along(tmp_path, program):
    log = tmp_path / "engine_0.log"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(log), program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pid = int(owner.stdout.readline())
    try:
        eventually(lambda: is_ready(log))
        assert group(pid)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        eventually(lambda: not group(pid))
    finally:
        for leftover in group(pid):
            os.kill(leftover, signal.SIGKILL)


def test_the_group_goes_when_its_leader_is_killed(tmp_path):
    process = spawn(tmp_path, FAMILY)
    try:
        eventually(lambda: is_ready(process.log_path))
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not group(process.pid))
    finally:
        process.stop()


def test_a_process_that_ends_while_starting_is_reported_with_its_log(tmp_path):
    process = spawn(tmp_path, "print('no such model'); raise SystemExit(3)")
    try:
        with pytest.raises(RunFailed) as error:
            _wait_until(process, lambda: False, DEADLINE_S)
    finally:
        process.stop()
    assert error.value.part == "engine 0"
    assert error.value.summary == "ended with code 3 while starting; the end of its log:\nno such model"


def test_a_port_in_use_is_named_as_such(tmp_path):
    process = spawn(tmp_path, "raise SystemExit('[Errno 98] error while attempting to bind: address already in use')")
    try:
        with pytest.raises(RunFailed, match="its port is in use") as error:
            _wait_until(process, lambda: False, DEADLINE_S)
    finally:
        process.stop()
    assert error.value.hint == "set rollout.port to a free port, or to null"


def test_a_process_that_is_not_ready_in_time_is_reported(tmp_path):
    process = spawn(tmp_path, "import time; print('loading', flush=True); time.sleep(600)")
    try:
        eventually(lambda: "loading" in process.log_path.read_text())
        with pytest.raises(RunFailed, match="not ready after 0 s; the end of its log:\nloading") as error:
            _wait_until(process, lambda: False, 0.2)
    finally:
        process.stop()
    assert "timeouts.start_s" in error.value.hint


def test_wait_exit_tells_a_crash_from_a_stop(tmp_path):
    crashed = spawn(tmp_path / "a", "print('out of memory'); raise SystemExit(9)")
    assert crashed.wait_exit() == "ended with code 9; the end of its log:\nout of memory"
    crashed.stop()
    stopped = spawn(tmp_path / "b", "import time; time.sleep(600)")
    reasons = []
    waiter = threading.Thread(target=lambda: reasons.append(stopped.wait_exit()))
    waiter.start()
    stopped.stop()
    waiter.join(DEADLINE_S)
    assert reasons == ["was stopped"]


def test_a_taken_port_is_refused_before_anything_starts(tmp_path, make_plan):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        plan = make_plan(port=port)
        server = ServerProcess(plan.engines[0], plan, "/none", str(tmp_path))
        with pytest.raises(RunFailed, match=f"engine 0: port {port} is in use"):
            server.start()
        router = RouterProcess(RouterPlan("round_robin", port), str(tmp_path))
        with pytest.raises(RunFailed, match=f"router: port {port} is in use"):
            router.start([])
    assert not list(tmp_path.iterdir())


def test_chosen_ports_stay_out_of_the_ephemeral_range():
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(path.read_text().split()[0]) if path.exists() else 32_768
    assert all(20_000 <= choose_port(None, "127.0.0.1", "engine 0") < max(first, 21_001) for _ in range(20))
