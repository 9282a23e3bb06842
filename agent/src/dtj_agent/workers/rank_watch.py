"""Watches the ranks of this pod while they run, for the coordinator: their vitals and their stacks."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from dtj_agent.group.hang_watch import STOPPED_SECONDS
from dtj_agent.net.loop import Loop
from dtj_agent.workers.process_watch import LIFE_SECONDS, ProcessWatch
from dtj_agent.workers.report_socket import ReportSocket
from dtj_agent.workers.stacks import StackFiles
from dtj_contract import names

LOOK_SECONDS = 0.02  # between two looks at the stacks that are being written


class RankWatch:
    """Calls `on_stopped()` once a rank has been stopped by a signal for STOPPED_SECONDS.

    `processes` returns the pids of the running workers by rank.
    """

    def __init__(
        self, loop: Loop, processes: Callable[[], Dict[int, int]], reports: ReportSocket, stacks: StackFiles
    ) -> None:
        self.on_stopped: Callable[[], None] = lambda: None
        self._loop = loop
        self._processes = processes
        self._reports = reports
        self._stacks = stacks
        self._watch = ProcessWatch(loop.clock())
        self._runs = self._started = False
        self._known_stopped = False
        self._takes_stacks = False

    def begin(self) -> None:
        """Watches the workers of a new attempt until all of them have ended."""
        self._watch = ProcessWatch(self._loop.clock())
        self._known_stopped = self._started = False
        if not self._runs:
            self._runs = True
            self._loop.later(names.PROCESS_STATE_SECONDS, self._look)

    def vitals(self) -> List[Dict[str, Any]]:
        """Returns what is known of each running rank, as a heartbeat holds it."""
        now, processes = self._loop.clock(), self._processes()
        ranks = {rank: self._reports.ranks.vitals(rank, now) for rank in sorted(processes)}
        quiet = any(rank.age >= LIFE_SECONDS for rank in ranks.values())
        if quiet and not self._takes_stacks:  # a rank that makes steps is alive
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
        """Calls `done` with the stacks of the ranks that have written one within STACK_SECONDS."""
        processes = self._processes()
        self._watch.look_at_once(processes, self._loop.clock())
        self._takes_stacks = True
        self._stacks.request(processes)
        until = self._loop.clock() + names.STACK_SECONDS

        def look() -> None:
            if self._stacks.pending() and self._loop.clock() < until:
                self._loop.later(LOOK_SECONDS, look)
            else:
                self._takes_stacks = False
                self._watch.pass_over(processes)
                done({str(rank): text for rank, text in self._stacks.read().items()})

        look()

    def _look(self) -> None:
        processes, now = self._processes(), self._loop.clock()
        # A warm process may take a while to start them.
        self._started = self._started or bool(processes)
        self._runs = bool(processes) or not self._started
        if not self._runs:
            return
        self._loop.later(names.PROCESS_STATE_SECONDS, self._look)
        self._watch.look_at_states(processes, now)
        stopped = any(self._watch.stopped(rank, now) >= STOPPED_SECONDS for rank in processes)
        if stopped and not self._known_stopped:
            self.on_stopped()
        self._known_stopped = stopped
