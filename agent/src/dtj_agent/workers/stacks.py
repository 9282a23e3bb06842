"""The Python stacks of workers: requested with a signal, written by faulthandler, read from files.

The signal terminates a process that has no handler for it. Only a process that has registered
(dtj_contract.stack_dump), that is the worker or one of its descendants, and that catches the signal
at this moment, gets it.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from dtj_contract import stack_dump

MAX_STACK_BYTES = 64 * 1024
MAX_ANCESTORS = 16  # between a wrapper such as bash and the interpreter that has registered
STATES = {"T": "stopped", "t": "being traced", "D": "in uninterruptible sleep", "Z": "a zombie", "X": "dead"}

_BIT = 1 << (stack_dump.SIGNAL - 1)


class StackFiles:
    """One file for each rank of this pod, in `directory`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._requested: Dict[int, int] = {}
        """The process of each rank that has been signalled."""

    def path(self, rank: int) -> str:
        """Returns the file in which the worker of `rank` registers."""
        return os.path.join(self._directory, "stack-%d.txt" % rank)

    def begin(self, ranks: Iterable[int]) -> None:
        """Removes what an earlier attempt's workers have registered."""
        self._requested = {}
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
        except OSError:
            return  # no stacks, as on a volume that is full
        for rank in ranks:
            try:
                os.unlink(self.path(rank))
            except OSError:
                pass

    def request(self, workers: Mapping[int, int]) -> None:
        """Makes the workers (rank -> pid) that have registered dump their stacks. Never blocks."""
        self._requested = {}
        for rank, worker in workers.items():
            pid = self._registered(rank)
            if pid is None or not _is_descendant(pid, worker) or not _catches(pid):
                continue
            try:
                os.truncate(self.path(rank), stack_dump.header_size(pid))
                os.kill(pid, stack_dump.SIGNAL)
            except OSError:
                continue  # ended meanwhile
            self._requested[rank] = pid

    def pending(self) -> List[int]:
        """Returns the ranks that have been signalled and have not yet finished their dump."""
        return [rank for rank, pid in sorted(self._requested.items()) if _has_pending(pid)]

    def read(self) -> Dict[int, str]:
        """Returns the stacks by rank, of all threads, as far as they are written; at most 64 kB a rank."""
        found = {}
        for rank, pid in self._requested.items():
            try:
                with open(self.path(rank), "rb") as file:
                    file.seek(stack_dump.header_size(pid))
                    dump = file.read(MAX_STACK_BYTES)
            except OSError:
                continue
            if dump:
                found[rank] = dump.decode("utf-8", "replace")
        return found

    def states(self, workers: Mapping[int, int]) -> Dict[int, str]:
        """Returns why a process (rank -> pid) can't run at all, such as "stopped"; absent for all others.

        A worker in this state writes no stack, however long one waits.
        """
        states = {}
        for rank, worker in workers.items():
            state = _status(self._requested.get(rank, worker)).get("State", "")[:1]
            if state in STATES:
                states[rank] = STATES[state]
        return states

    def _registered(self, rank: int) -> Optional[int]:
        try:
            with open(self.path(rank), "rb") as file:
                return stack_dump.registered_pid(file.read(stack_dump.MAX_HEADER_BYTES))
        except OSError:
            return None


def _status(pid: int) -> Dict[str, str]:
    """Returns /proc/PID/status; {} if the process is gone, or where there is no /proc."""
    try:
        with open("/proc/%d/status" % pid, errors="replace") as file:
            pairs: List[Tuple[str, str, str]] = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in pairs}


def _signals(status: Mapping[str, str], key: str) -> int:
    """Returns one of the signal sets of a status; empty if it is missing."""
    try:
        return int(status.get(key, "0"), 16)
    except ValueError:
        return 0


def _catches(pid: int) -> bool:
    return bool(_signals(_status(pid), "SigCgt") & _BIT)


def _has_pending(pid: int) -> bool:
    """Returns whether the signal waits for delivery, or its handler still runs (it is blocked meanwhile)."""
    status = _status(pid)
    sets = [_signals(status, key) for key in ("SigPnd", "ShdPnd", "SigBlk")]
    return status.get("State", "Z")[:1] != "Z" and any(each & _BIT for each in sets)


def _is_descendant(pid: int, ancestor: int) -> bool:
    """Returns whether `pid` is `ancestor` or descends from it."""
    for _ in range(MAX_ANCESTORS):
        if pid == ancestor:
            return True
        parent = _status(pid).get("PPid", "")
        if not parent.isdigit() or int(parent) <= 1:
            return False
        pid = int(parent)
    return False
