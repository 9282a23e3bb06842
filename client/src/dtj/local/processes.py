"""Finding and ending the processes of a local pod.

A pod on a cluster ends with all that ever ran in it, because it is a cgroup. Here an environment variable takes the cgroup's
part: every process of a pod inherits names.ENV_LOCAL_POD, whatever session or process group it moved to.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from dtj.errors import LocalRunError
from dtj_contract import names

PROC = Path("/proc")
KILL_DEADLINE_SECONDS = 5.0  # SIGKILL is not asked but done: only a process in uninterruptible I/O outlives it


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it is gone, a zombie, in exec(2), or another user's."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def tagged(tag: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(pid, environment) of every living process whose tag starts with `tag`: of a run, or of one of its pods."""
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            found = environment(int(entry.name))
            if found.get(names.ENV_LOCAL_POD, "").startswith(tag):
                yield int(entry.name), found


def workers(tag: str) -> dict[str, dict[int, int]]:
    """Process id of each worker by the tag of its pod and by its global rank."""
    processes = dict(tagged(tag))
    found: dict[str, dict[int, int]] = {}
    for pid, env in processes.items():
        # A worker's own children inherit RANK: the worker is the one whose parent has none.
        if "RANK" in env and "RANK" not in processes.get(parent(pid), {}):
            found.setdefault(env[names.ENV_LOCAL_POD], {})[int(env["RANK"])] = pid
    return found


def parent(pid: int) -> int:
    """Process id of the parent; 0 if the process is gone."""
    try:
        # The command's name stands in parentheses and may hold any character: read behind the last one.
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def kill(pid: int, tag: str, number: signal.Signals = signal.SIGKILL) -> bool:
    """Signal one process if it still carries the tag. False: it was gone (and its number may belong to another by now)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # From here on the handle means this process alone, so the look at its environment can't be out of date.
        if not environment(pid).get(names.ENV_LOCAL_POD, "").startswith(tag):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def kill_all(tag: str) -> int:
    """SIGKILL every tagged process, and those that they start meanwhile. How many signals were sent.

    Raises LocalRunError if one is still there after KILL_DEADLINE_SECONDS.
    """
    sent = 0
    deadline = time.monotonic() + KILL_DEADLINE_SECONDS
    while left := [pid for pid, _ in tagged(tag)]:
        if time.monotonic() > deadline:
            raise LocalRunError(f"processes {left} outlive SIGKILL: look at their state with `ps -o pid,stat,wchan,cmd`")
        sent += sum(kill(pid, tag) for pid in left)
        time.sleep(0.005)
    return sent


def require_linux() -> None:
    """Raises LocalRunError where a local run could not promise that nothing is left running."""
    if not (PROC / "self" / "environ").exists():
        raise LocalRunError("dtj run needs Linux: it finds the processes of a pod in /proc; run it in a Linux container instead")
