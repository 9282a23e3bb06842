"""The processes of one trial, found by a variable that all of them inherit."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARK = "RECOVERY_TRIAL"
POD = "DTJ_LOCAL_POD"
KILL_SECONDS = 10.0
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


def environment(pid: int) -> dict[str, str]:
    """Returns the environment that a process was started with; {} if there is no such process."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def marked(mark: str) -> dict[int, dict[str, str]]:
    """Returns the environment of each process of the trial by its id."""
    found = {int(entry.name): environment(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdecimal()}
    return {pid: environ for pid, environ in found.items() if environ.get(MARK) == mark}


def _stat(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def parent(pid: int) -> int:
    """Returns the id of the parent; 0 if there is no such process."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def started(pid: int) -> float:
    """Returns the time.monotonic() at which a process started, to a hundredth of a second; 0 if it is gone."""
    fields = _stat(pid)
    suspended = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return int(fields[19]) / _TICKS - suspended if fields else 0.0


def command(pid: int) -> str:
    """Returns the command line; empty if there is no such process."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def send(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signals a process that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def kill_with_descendants(agent: int, mark: str) -> None:
    """Kills an agent, what it has started, and what carries the tag of its pod."""
    every = marked(mark)
    tag = every.get(agent, {}).get(POD)
    doomed = {agent}
    while more := {pid for pid in every if parent(pid) in doomed} - doomed:
        doomed |= more
    doomed |= {pid for pid, environ in every.items() if tag and environ.get(POD) == tag}
    for pid in [agent, *sorted(doomed - {agent})]:
        send(pid)


def kill_all(mark: str) -> None:
    """Kills all processes of the trial. Raises RuntimeError if one outlives SIGKILL."""
    deadline = time.monotonic() + KILL_SECONDS
    while left := [pid for pid in marked(mark) if _stat(pid)[:1] != ["Z"]]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {left} outlive SIGKILL")
        for pid in left:
            send(pid)
        time.sleep(0.02)
