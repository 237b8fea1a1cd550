"""Processes that end with their owner, however it ends.

The owner keeps the write end of a pipe and the child reads the other: when the owner dies, even by SIGKILL, the kernel
closes the pipe and the child kills its own process group. Unlike PR_SET_PDEATHSIG it does not depend on which thread
of the owner started the child, and it covers the child's children.
"""

from __future__ import annotations

import os
import signal
import threading

OWNER_FD = "RLRUN_OWNER_FD"
"""Environment variable with the number of the pipe's read end in the child."""


def die_with_owner() -> None:
    """Watches the pipe of `OWNER_FD`, if there is one, from a daemon thread. Call it first thing in the child, which
    must lead its own process group."""
    fd = os.environ.pop(OWNER_FD, None)
    if fd is None:
        return
    assert os.getpgrp() == os.getpid(), "the child must lead its own process group"
    os.set_inheritable(int(fd), False)
    threading.Thread(target=_kill_group_at_end_of, args=(int(fd),), name="owner", daemon=True).start()


def _kill_group_at_end_of(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.killpg(os.getpid(), signal.SIGKILL)
