"""Watches the ranks of this pod while they run, for the coordinator: their vitals and their stacks."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from dtj_agent.group.hang_watch import STOPPED_SECONDS
from dtj_agent.net.loop import Loop
from dtj_agent.workers.process_watch import LIFE_SECONDS, ProcessWatch
from dtj_agent.workers.report_socket import ReportSocket
from dtj_contract import names

TakeStacks = Callable[[Dict[int, int], Callable[[Dict[int, str]], None]], None]
"""Takes the stacks of rank -> pid, and calls back with those that could be had."""


class RankWatch:
    """Calls `on_stopped()` once a rank has been stopped by a signal for STOPPED_SECONDS.

    `processes` returns the pids of the running workers by rank.
    """

    def __init__(self, loop: Loop, processes: Callable[[], Dict[int, int]], reports: ReportSocket) -> None:
        self.on_stopped: Callable[[], None] = lambda: None
        self.take: Optional[TakeStacks] = None
        """None where no worker can give a stack."""
        self._loop = loop
        self._processes = processes
        self._reports = reports
        self._watch = ProcessWatch(loop.clock())
        self._runs = False
        self._known_stopped = False

    def begin(self) -> None:
        """Watches the workers of a new attempt until all of them have ended."""
        self._watch = ProcessWatch(self._loop.clock())
        self._known_stopped = False
        if not self._runs:
            self._runs = True
            self._loop.later(names.PROCESS_STATE_SECONDS, self._look)

    def vitals(self) -> List[Dict[str, Any]]:
        """Returns what is known of each running rank, as a heartbeat holds it."""
        now, processes = self._loop.clock(), self._processes()
        ranks = {rank: self._reports.ranks.vitals(rank, now) for rank in sorted(processes)}
        quiet = any(rank.age >= LIFE_SECONDS for rank in ranks.values())
        if quiet:  # a rank that makes steps is alive
            self._watch.look_for_life(processes, now)
        return [
            found._replace(
                stopped=self._watch.stopped(rank, now),
                idle=self._watch.idle(rank, now) if quiet else 0.0,
                disk=quiet and self._watch.is_at_disk(rank),
            ).to_json()
            for rank, found in ranks.items()
        ]

    def take_stacks(self, done: Callable[[Dict[str, str]], None]) -> None:
        """Calls `done` with the stacks of the running ranks; with none at once where none can be had."""
        processes = self._processes()
        if self.take is None or not processes:
            return done({})
        room = names.MAX_EVIDENCE_CHARS // len(processes)
        return self.take(processes, lambda found: done({str(rank): text[:room] for rank, text in found.items()}))

    def _look(self) -> None:
        processes, now = self._processes(), self._loop.clock()
        self._runs = bool(processes)
        if not processes:
            return
        self._loop.later(names.PROCESS_STATE_SECONDS, self._look)
        self._watch.look_at_states(processes, now)
        stopped = any(self._watch.stopped(rank, now) >= STOPPED_SECONDS for rank in processes)
        if stopped and not self._known_stopped:
            self.on_stopped()
        self._known_stopped = stopped
