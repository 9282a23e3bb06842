"""Finds and kills the processes of a local pod.

On a cluster a pod is a cgroup, so it ends with every process in it. Here an environment variable
takes the cgroup's place: every process of a pod inherits names.ENV_LOCAL_POD, whatever session
or process group it moves to. The variable's value is the pod's tag.
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
# Only a process in uninterruptible I/O outlives SIGKILL for long.
KILL_DEADLINE_SECONDS = 5.0


def environment(pid: int) -> dict[str, str]:
    """Returns the environment that a process was started with.

    Returns {} if the process is gone, a zombie, in exec(2), or another user's.
    """
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def tagged(tag: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (pid, environment) of every living process whose tag starts with `tag`.

    The start of a tag identifies a run, a whole tag one of its pods.
    """
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            found = environment(int(entry.name))
            if found.get(names.ENV_LOCAL_POD, "").startswith(tag):
                yield int(entry.name), found


def workers(tag: str) -> dict[str, dict[int, int]]:
    """Returns the process id of each worker by the tag of its pod and by its global rank."""
    processes = dict(tagged(tag))
    found: dict[str, dict[int, int]] = {}
    for pid, env in processes.items():
        # A worker's own children inherit RANK, so the worker is the process whose parent has none.
        if "RANK" in env and "RANK" not in processes.get(parent(pid), {}):
            found.setdefault(env[names.ENV_LOCAL_POD], {})[int(env["RANK"])] = pid
    return found


def parent(pid: int) -> int:
    """Returns the process id of the parent, or 0 if the process is gone."""
    try:
        # The command's name is in parentheses and may contain any character, so read after the last
        # one.
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def kill(pid: int, tag: str, number: signal.Signals = signal.SIGKILL) -> bool:
    """Signals one process if it still carries the tag.

    Returns False if the process is gone (and its number may belong to another by now).
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The handle refers to this very process, so its environment can't be another process's.
        if not environment(pid).get(names.ENV_LOCAL_POD, "").startswith(tag):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def kill_all(tag: str) -> int:
    """Sends SIGKILL to every tagged process, and to those that they start meanwhile.

    Returns the number of signals sent. Raises LocalRunError if a process is still there after
    KILL_DEADLINE_SECONDS.
    """
    sent = 0
    deadline = time.monotonic() + KILL_DEADLINE_SECONDS
    while left := [pid for pid, _ in tagged(tag)]:
        if time.monotonic() > deadline:
            raise LocalRunError(f"processes {left} outlive SIGKILL: inspect them with `ps -o pid,stat,wchan,cmd`")
        sent += sum(kill(pid, tag) for pid in left)
        time.sleep(0.005)
    return sent


def require_linux() -> None:
    """Raises LocalRunError where a local run could not guarantee that no process is left."""
    if not (PROC / "self" / "environ").exists():
        raise LocalRunError(
            "dtj run needs Linux: it finds the processes of a pod in /proc; run it in a Linux container instead"
        )
