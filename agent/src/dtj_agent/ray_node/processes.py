"""Children of this process: waited for, ended, and made to end with it. Linux, as Ray's raylet."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import List, Optional

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SWEEP_SECONDS = 0.02
KILL_SECONDS = 10.0


def die_with(parent: int) -> None:
    """Requests SIGKILL for when the parent dies, and ends now if it is dead already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants whose own parents die."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait(pid: int, seconds: float) -> Optional[int]:
    """Returns the wait status of a child, None if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(SWEEP_SECONDS)


def kill_children() -> List[int]:
    """Kills all children, and their orphans, which become children. Returns those that outlive SIGKILL."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        left = []
        for pid in children():
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                os.kill(pid, signal.SIGKILL)
                left.append(pid)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(SWEEP_SECONDS)


def children() -> List[int]:
    """Returns the children of this process, those that have ended too."""
    with open("/proc/self/task/%d/children" % os.getpid()) as file:
        return [int(pid) for pid in file.read().split()]


def name(pid: int) -> str:
    """Returns the name of a program, that of one that has ended too; empty if there is no such process."""
    try:
        with open("/proc/%d/comm" % pid) as file:
            return file.read().strip()
    except OSError:
        return ""


def exit_code(status: int) -> int:
    """Returns the exit code that a shell would give to a wait status."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def end_of(status: int) -> str:
    """Returns a wait status as text."""
    return "signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "exit code %d" % os.WEXITSTATUS(status)
