"""The state and the signs of life of the workers' processes, from /proc; other systems show none.

A process that a signal has stopped is in state T. Its debugger would put it into state t.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Tuple

LIFE_SECONDS = 5.0
"""Between two looks at processor time and I/O, which read every process of the pod."""
CPU_SECONDS = 0.1
"""Processor time between two looks that is a sign of life: idle helper threads use less."""
IO_BYTES = 4096
"""Bytes between two looks; a heartbeat of a collective library is shorter."""
_TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _SESSION, _USER_TIME, _SYSTEM_TIME = 0, 3, 11, 12
"""Fields of /proc/PID/stat after the command's name."""


class Life(NamedTuple):
    """Sums over the processes of one worker: processor seconds, bytes, and whether one waits for a disk."""

    cpu: float
    io: int
    blocked: bool


def is_stopped(pid: int) -> bool:
    """Returns whether a signal has stopped the process."""
    return _stat(pid)[:1] == ["T"]


class ProcessWatch:
    """Follows the processes of one attempt's workers. `now`: monotonic seconds, here and below."""

    def __init__(self, now: float) -> None:
        self._stopped_at: Dict[int, float] = {}  # by rank
        self._life: Dict[int, Life] = {}
        self._alive_at: Dict[int, float] = {}
        self._disk: Dict[int, bool] = {}
        self._began = now
        self._looked = now

    def look_at_states(self, processes: Dict[int, int], now: float) -> None:
        """Notes which of `processes` (rank -> pid) are stopped."""
        for rank, pid in processes.items():
            if is_stopped(pid):
                self._stopped_at.setdefault(rank, now)
            else:
                self._stopped_at.pop(rank, None)

    def look_for_life(self, processes: Dict[int, int], now: float) -> None:
        """Notes which workers have used processor, network or disk since the last look, if one is due."""
        if now - self._looked >= LIFE_SECONDS or not self._life:
            self.look_at_once(processes, now)

    def look_at_once(self, processes: Dict[int, int], now: float) -> None:
        self._looked = now
        lives = _lives(list(processes.values()))
        for rank, pid in processes.items():
            life, before = lives.get(pid, Life(0.0, 0, False)), self._life.get(rank, Life(0.0, 0, False))
            self._life[rank] = life
            moved = life.io - before.io >= IO_BYTES
            self._disk[rank] = moved or life.blocked
            # The sums shrink when a child ends.
            if moved or abs(life.cpu - before.cpu) >= CPU_SECONDS or life.io < before.io:
                self._alive_at[rank] = now

    def pass_over(self, processes: Dict[int, int]) -> None:
        """Passes over what workers have used since the last look: they wrote stacks, which is no sign of life."""
        lives = _lives(list(processes.values()))
        self._life.update((rank, lives[pid]) for rank, pid in processes.items() if pid in lives)

    def stopped(self, rank: int, now: float) -> float:
        """Returns for how many seconds a signal has stopped the rank; 0 if it runs."""
        return now - self._stopped_at.get(rank, now)

    def idle(self, rank: int, now: float) -> float:
        """Returns the seconds since the rank's last sign of life."""
        return now - self._alive_at.get(rank, self._began)

    def is_at_disk(self, rank: int) -> bool:
        return self._disk.get(rank, False)


def _lives(leaders: List[int]) -> Dict[int, Life]:
    """Returns the sums over the session of each of `leaders`."""
    sums: Dict[int, Tuple[float, int, bool]] = {}
    wanted = set(leaders)
    for name in _processes():
        stat = _stat(int(name))
        if len(stat) > _SYSTEM_TIME and int(stat[_SESSION]) in wanted:
            leader = int(stat[_SESSION])
            cpu, moved, blocked = sums.get(leader, (0.0, 0, False))
            cpu += (int(stat[_USER_TIME]) + int(stat[_SYSTEM_TIME])) / _TICKS
            sums[leader] = cpu, moved + _io_bytes(name), blocked or stat[_STATE] == "D"
    return {leader: Life(*found) for leader, found in sums.items()}


def _processes() -> List[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _stat(pid: int) -> List[str]:
    """Returns the fields of /proc/PID/stat after the name; [] if the process is gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _io_bytes(pid: str) -> int:
    """Returns the bytes that a process has read and written, sockets included."""
    try:
        with open("/proc/%s/io" % pid) as file:
            fields = dict(line.split(": ") for line in file.read().splitlines())
        return int(fields["rchar"]) + int(fields["wchar"])
    except (OSError, KeyError, ValueError):
        return 0
