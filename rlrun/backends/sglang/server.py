"""Processes that the run owns: SGLang servers and the router. Started, awaited, stopped; nothing is left behind.

A process leads its own session and process group, so that stopping it takes its children along, and dies with its
owner (`owner.py`). It fails early and with the end of its log.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from rlrun.backends.base import EngineAddress
from rlrun.backends.sglang.args import router_command, server_command, server_env
from rlrun.backends.sglang.owner import OWNER_FD
from rlrun.errors import RunFailed
from rlrun.plan.ports import is_free
from rlrun.plan.types import EnginePlan, RouterPlan, RunPlan

POLL_S = 0.1
STOP_DEADLINE_S = 20.0
LOG_TAIL_LINES = 25
MEMORY_TAGS = ("kv_cache", "weights", "cuda_graph")
"""What SGLang's memory saver releases and resumes, by its names there."""


class OwnedProcess:
    """One process group with a log file. Subclasses say what to run."""

    def __init__(self, name: str, log_path: Path):
        self.name = name
        self.log_path = log_path
        self.pid: int | None = None
        self._process: subprocess.Popen | None = None
        self._stopping = False
        self._owner_fd: int | None = None
        self._scratch: str | None = None
        self._shared: set[str] = set()

    def spawn(self, command: Sequence[str], env: dict[str, str]) -> None:
        """Starts `command` in a session of its own, stdout and stderr into the log file."""
        assert self._process is None, f"{self.name} was started twice"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        read_end, self._owner_fd = os.pipe()
        # SGLang leaves its sockets in the temporary folder; in one of its own they can be taken away.
        self._scratch = tempfile.mkdtemp(prefix="rlrun-")
        try:
            with open(self.log_path, "ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**env, OWNER_FD: str(read_end), "TMPDIR": self._scratch},
                    start_new_session=True,
                    pass_fds=(read_end,),
                )
        finally:
            os.close(read_end)
        self.pid = self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_exit(self) -> str:
        """Blocks until the process has ended, by itself or by `stop`, and says why. May run beside the other
        methods, in another thread."""
        assert self._process is not None, f"{self.name} was not started"
        code = self._process.wait()
        if self._stopping:
            return "was stopped"
        if code < 0:  # by a signal: its log has nothing to say about it
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with code {code}; the end of its log:\n{log_tail(self.log_path)}"

    def stop(self, grace_s: float = 0.0) -> None:
        """Ends the whole process group and returns when it is empty.

        With `grace_s`, SIGTERM first and SIGKILL when that time is over. SGLang has nothing to save, spends 6 s on
        SIGTERM and has hung there, so the default is SIGKILL at once, which is also how its own shutdown ends.
        """
        if self._process is None:
            return
        self._stopping = True
        self.note_shared_memory()
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            self._await_empty_group(grace_s)
        self._signal(signal.SIGKILL)
        if not self._await_empty_group(STOP_DEADLINE_S):
            raise RunFailed(self.name, f"process group {self.pid} survives SIGKILL", "look at it with ps")
        if self._owner_fd is not None:
            os.close(self._owner_fd)
            self._owner_fd = None
        self._clean_up()

    def note_shared_memory(self) -> None:
        """Remembers the files in /dev/shm that `stop` has to take away: SGLang names them after nothing that is known
        from outside, and a process that is killed leaves them. Call while the processes live."""
        for pid in self._members():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
                self._shared |= set(re.findall(r"/dev/shm/sgl\S+", mapped))
            self._shared |= set(glob.glob(f"/dev/shm/sem.loky-{pid}-*"))

    def _members(self) -> list[int]:
        """Processes of the group."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[2]) == self.pid:
                    found.append(int(entry.name))
        return found

    def _clean_up(self) -> None:
        """Removes the scratch folder, and the shared memory that was noted."""
        for path in self._shared:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._shared = set()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def require_alive(self, doing: str) -> None:
        """Raises RunFailed with the end of the log when the process has ended."""
        if self.alive():
            return
        assert self._process is not None, f"{self.name} was not started"
        tail = log_tail(self.log_path)
        in_use = "address already in use" in tail.lower() or "port is already in use" in tail.lower()
        summary = f"ended with code {self._process.returncode} {doing}"
        if in_use:
            summary += ": its port is in use"
        hint = "set rollout.port to a free port, or to null" if in_use else f"see {self.log_path}"
        raise RunFailed(self.name, f"{summary}; the end of its log:\n{tail}", hint)

    def _signal(self, number: int) -> None:
        assert self.pid is not None, f"{self.name} was not started"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _await_empty_group(self, seconds: float) -> bool:
        assert self._process is not None, f"{self.name} was not started"
        assert self.pid is not None
        end = time.monotonic() + seconds
        while True:
            self._process.poll()  # reaps the leader
            try:
                os.killpg(self.pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)


class ServerProcess(OwnedProcess):
    """One SGLang server, as the plan says.

    `slot_gpus` are the GPU ids of all of `plan.slots` where they differ from the plan's numbers; `host` is the address
    to listen on, by default loopback on one node and this node's own address on several.
    """

    def __init__(
        self,
        engine: EnginePlan,
        plan: RunPlan,
        model_dir: str,
        log_dir: str,
        host: str | None = None,
        slot_gpus: Sequence[str] = (),
    ):
        super().__init__(f"engine {engine.index}", Path(log_dir) / f"engine_{engine.index}.log")
        self._engine, self._plan, self._model_dir = engine, plan, model_dir
        self._host = host or own_host(plan.num_nodes)
        self._slot_gpus = tuple(slot_gpus)
        self._port: int | None = None

    @property
    def address(self) -> EngineAddress:
        assert self._port is not None, "an engine has an address once it is started"
        return EngineAddress(self._engine.index, f"http://{self._host}:{self._port}", self._engine.tp)

    def start(self) -> None:
        """Starts the process and returns at once."""
        self._port = choose_port(self._engine.port, self._host, self.name)
        dist_port = choose_port(self._engine.dist_port, self._host, self.name)
        command = server_command(self._engine, self._plan, self._model_dir, self._port, dist_port, self._host)
        self.spawn(command, server_env(self._engine, self._plan, os.environ, self._slot_gpus))

    def wait_ready(self, deadline_s: float) -> EngineAddress:
        """Returns when /health answers. Raises RunFailed when the process ends or the deadline passes."""
        _wait_until(self, lambda: http_status(f"{self.address.url}/health") == 200, deadline_s)
        return self.address

    def release_memory(self, deadline_s: float) -> None:
        """Weights, KV cache and CUDA graphs leave the GPU. The server must be idle, or it ends."""
        self._tell("/release_memory_occupation", MEMORY_TAGS, deadline_s)

    def resume_memory(self, tags: Sequence[str], deadline_s: float) -> None:
        """Room for what `tags` name; the contents do not come back."""
        self._tell("/resume_memory_occupation", tags, deadline_s)

    def _tell(self, path: str, tags: Sequence[str], deadline_s: float) -> None:
        try:
            http_json(f"{self.address.url}{path}", {"tags": list(tags)}, deadline_s)
        except OSError as e:
            self.require_alive(f"on {path}")
            raise RunFailed(self.name, f"{path} failed: {e}", f"see {self.log_path}") from e


class RouterProcess(OwnedProcess):
    """sglang-router in front of several engines, which must be ready."""

    def __init__(self, router: RouterPlan, log_dir: str, host: str = "127.0.0.1", model: str | None = None):
        """`model` is the name of a frozen model; None for the policy's router."""
        name = "router" if model is None else f"router {model}"
        super().__init__(name, Path(log_dir) / f"{name.replace(' ', '_')}.log")
        self._router, self._host = router, host
        self._engines: tuple[EngineAddress, ...] = ()
        self.url = ""

    def start(self, engines: Sequence[EngineAddress]) -> None:
        """Starts the process and returns at once."""
        self._engines = tuple(engines)
        port = choose_port(self._router.port, self._host, self.name)
        self.url = f"http://{self._host}:{port}"
        metrics_port = choose_port(None, "127.0.0.1", self.name)
        self.spawn(router_command(self._router, port, self._host, metrics_port), dict(os.environ))

    def wait_ready(self, deadline_s: float) -> str:
        """Adds the engines and returns the router's URL when it calls every one of them healthy."""
        end = time.monotonic() + deadline_s
        _wait_until(self, lambda: http_status(f"{self.url}/liveness") == 200, deadline_s)
        for engine in self._engines:
            http_json(f"{self.url}/workers", {"url": engine.url})
        wanted = {engine.url for engine in self._engines}
        _wait_until(self, lambda: wanted <= self.healthy(), end - time.monotonic())
        return self.url

    def healthy(self) -> set[str]:
        """URLs of the workers that the router would send requests to."""
        return {w["url"] for w in http_json(f"{self.url}/workers")["workers"] if w["is_healthy"]}


def own_host(num_nodes: int) -> str:
    """Where this node listens: loopback when it is the only one, else its address on the default route."""
    if num_nodes == 1:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("192.0.2.1", 9))  # reserved for documentation (RFC 5737); nothing is sent
        return s.getsockname()[0]


def choose_port(wanted: int | None, host: str, part: str) -> int:
    """`wanted` if it is free, or a free port when None. Raises RunFailed when it is taken.

    Free ports are drawn below the kernel's ephemeral range: a server binds its port at the end of its start-up, and
    in the meantime any outgoing connection could have been given an ephemeral one.
    """
    if wanted is not None:
        if not is_free(wanted, host):
            raise RunFailed(part, f"port {wanted} is in use", "set rollout.port to a free port, or to null")
        return wanted
    ports = list(range(20_000, _first_ephemeral_port()))
    random.SystemRandom().shuffle(ports)
    for port in ports:
        if is_free(port, host):
            return port
    raise RunFailed(part, f"no free port on {host} in 20000..{_first_ephemeral_port() - 1}")


def _first_ephemeral_port() -> int:
    path = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(path.read_text().split()[0]) if path.exists() else 32_768
    return first if first > 21_000 else 32_768


def _wait_until(process: OwnedProcess, ready: Callable[[], bool], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while True:
        process.require_alive("while starting")
        if ready():
            process.note_shared_memory()
            return
        if time.monotonic() > end:
            tail = log_tail(process.log_path)
            raise RunFailed(
                process.name,
                f"not ready after {deadline_s:.0f} s; the end of its log:\n{tail}",
                f"raise timeouts.start_s, or see {process.log_path}",
            )
        time.sleep(POLL_S)


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    if not path.exists():
        return ""
    with open(path, "rb") as f:
        f.seek(max(0, path.stat().st_size - 64_000))
        return "\n".join(f.read().decode(errors="replace").splitlines()[-lines:])


def http_status(url: str) -> int | None:
    """Status of a GET, None when nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return None


def http_json(url: str, body: dict | None = None, timeout_s: float = 10.0) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        return json.loads(response.read())
