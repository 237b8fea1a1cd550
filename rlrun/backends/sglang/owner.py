"""Processes that end with their owner, however it ends.

The owner keeps the write end of a pipe and the child reads the other: when the owner dies, even by SIGKILL, the kernel
closes the pipe and the child's whole process group is killed. Unlike PR_SET_PDEATHSIG this does not depend on which
thread of the owner started the child, and it covers the child's children. The reader is a small forked process and not
a thread, because the router never lets go of the interpreter lock.
"""

from __future__ import annotations

import os
import select
import signal

OWNER_FD = "RLRUN_OWNER_FD"
"""Environment variable with the number of the pipe's read end in the child."""


def die_with_owner() -> None:
    """Forks the watcher of `OWNER_FD`, if there is one. Call it first thing in the child, before any import that
    starts threads; the child must lead its own process group.

    The watcher ends, and takes the group along, when the owner or the child itself ends.
    """
    text = os.environ.pop(OWNER_FD, None)
    if text is None:
        return
    assert os.getpgrp() == os.getpid(), "the child must lead its own process group"
    owner_fd = int(text)
    child_fd, keep_open = os.pipe()  # neither end is inherited by programs started later
    if os.fork() == 0:
        os.close(keep_open)
        _watch(owner_fd, child_fd)
    os.close(owner_fd)
    os.close(child_fd)


def _watch(owner_fd: int, child_fd: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # stay until the child is gone
    select.select([owner_fd, child_fd], [], [])  # nobody writes: readable means closed
    os.killpg(os.getpgrp(), signal.SIGKILL)
