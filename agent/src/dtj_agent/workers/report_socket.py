"""The unix datagram socket that workers report to, and the pace at which their reports are sent to the coordinator."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Dict, List, Optional

from dtj_agent.errors import SettingsError
from dtj_agent.net.loop import READ, Loop
from dtj_agent.workers.progress_board import ProgressBoard
from dtj_agent.workers.rank_board import RankBoard
from dtj_contract import names, worker_report

MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes, 104 on macOS
READS_AT_ONCE = 256  # then others get their turn


class ReportSocket:
    """Calls `on_news()` when the coordinator should get a report now; `take` returns it.

    Raises SettingsError if the state dir can't hold a socket.
    """

    def __init__(self, loop: Loop, state_dir: str) -> None:
        self.on_news: Callable[[], object] = lambda: None
        self._loop = loop
        self._board = ProgressBoard(0)
        self.ranks = RankBoard(0, loop.clock())
        """The reports of this attempt, by rank."""
        self._last_taken = 0.0
        self.path = os.path.join(os.path.abspath(state_dir), names.SOCKET_FILE)
        if len(self.path.encode()) > MAX_SOCKET_PATH:
            self.path = "/tmp/dtj-%s.sock" % os.urandom(8).hex()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            os.makedirs(state_dir, exist_ok=True)
            if os.path.exists(self.path):
                os.unlink(self.path)
            self._socket.bind(self.path)
        except OSError as error:
            self._socket.close()
            why = "%s: can't write to %s (%s)" % (names.ENV_STATE_DIR, state_dir, error.strerror)
            raise SettingsError(why) from error
        self._socket.setblocking(False)
        loop.watch(self._socket, READ, lambda events: self._ready())

    def begin(self, attempt: int) -> None:
        """Accepts only reports of this attempt from now on."""
        self._board = ProgressBoard(attempt, self._board.take_events())
        self.ranks = RankBoard(attempt, self._loop.clock(), self.ranks.longest)

    def read(self) -> None:
        """Reads the reports that have arrived; a worker that has ended may have sent one just before."""
        for _ in range(READS_AT_ONCE):
            try:
                report = worker_report.parse(self._socket.recv(names.MAX_DATAGRAM_BYTES))
            except BlockingIOError:
                break
            if report is not None:
                self._board.add(report)
                self.ranks.add(report, self._loop.clock())

    def take(self) -> List[Dict[str, Any]]:
        """Returns the news as messages. Each is returned once and must arrive, so call it only with an open link."""
        summary = self._board.take()
        messages: List[Dict[str, Any]] = [{"type": "event", "event": event} for event in self._board.take_events()]
        if summary is not None:
            self._last_taken = self._loop.clock()
            messages.append({"type": "progress", "attempt": self._board.attempt, "progress": summary})
        return messages

    @property
    def attempt(self) -> int:
        return self._board.attempt

    @property
    def step(self) -> Optional[int]:
        return self._board.step

    def close(self) -> None:
        self._loop.unwatch(self._socket)
        self._socket.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def _ready(self) -> None:
        self.read()
        due = self._loop.clock() - self._last_taken >= names.PROGRESS_SECONDS
        # All other reports go with the next heartbeat.
        if self._board.urgent or (self._board.rank == 0 and due):
            self.on_news()
