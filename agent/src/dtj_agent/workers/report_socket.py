"""The unix datagram socket that workers report to, and how often what they say goes on to the coordinator."""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, Dict, List, Optional

from dtj_agent.errors import SettingsError
from dtj_agent.net.loop import READ, Loop
from dtj_agent.workers import progress_board
from dtj_contract import names

MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes, 104 on macOS
READS_AT_ONCE = 256  # then others get their turn


class ReportSocket:
    """`on_news()` when there is something that the coordinator should hear now; `take` is what. Raise SettingsError."""

    def __init__(self, loop: Loop, state_dir: str) -> None:
        self.on_news: Callable[[], object] = lambda: None
        self._loop = loop
        self._board = progress_board.ProgressBoard(0)
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
            raise SettingsError("%s: %s can't be written (%s)" % (names.ENV_STATE_DIR, state_dir, error.strerror)) from error
        self._socket.setblocking(False)
        loop.watch(self._socket, READ, lambda events: self._ready())

    def begin(self, attempt: int) -> None:
        """From now on only reports of this attempt count."""
        self._board = progress_board.ProgressBoard(attempt, self._board.take_events())

    def read(self) -> None:
        """Take in what has arrived; a worker that has ended may have reported just before."""
        for _ in range(READS_AT_ONCE):
            try:
                report = progress_board.parse(self._socket.recv(names.MAX_DATAGRAM_BYTES))
            except BlockingIOError:
                break
            if report is not None:
                self._board.add(report)

    def take(self) -> List[Dict[str, Any]]:
        """What is new, as messages; once taken it must arrive, so not without a link."""
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
        if self._board.urgent or (self._board.rank == 0 and due):  # what is not, goes with the next heartbeat
            self.on_news()
