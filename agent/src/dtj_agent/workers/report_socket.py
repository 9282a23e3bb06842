"""The unix datagram socket that workers report to, and the pace at which their reports are sent to the coordinator."""

from __future__ import annotations

import os
import socket
from array import array
from typing import Any, Callable, Dict, List, Optional, Tuple

from dtj_agent.errors import SettingsError
from dtj_agent.net.loop import READ, Loop
from dtj_agent.workers.progress_board import ProgressBoard
from dtj_agent.workers.rank_board import RankBoard
from dtj_agent.workers.step_pages import StepPages
from dtj_contract import names, worker_report
from dtj_contract.step_page import StepCount

MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes, 104 on macOS
READS_AT_ONCE = 256  # then others get their turn
MAX_DESCRIPTORS = 4  # of one datagram; the kernel drops more
CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # Linux; pages reach the agent on no other system


class ReportSocket:
    """Calls `on_news()` when the coordinator should get a report now; `take` returns it.

    Raises SettingsError if the state dir can't hold a socket.
    """

    def __init__(self, loop: Loop, state_dir: str) -> None:
        self.on_news: Callable[[], object] = lambda: None
        self._loop = loop
        self._board = ProgressBoard(0)
        self._only: Optional[int] = None
        self.ranks = RankBoard(0, loop.clock())
        """The reports of this attempt, by rank."""
        self._last_taken = 0.0
        self._pages = StepPages()
        self._counts: Dict[int, StepCount] = {}
        self._is_reading_pages = False
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

    def begin(self, attempt: int, only: Optional[int] = None) -> None:
        """Accepts only reports of this attempt from now on.

        `only`: the rank of all of them, whichever they state. The workers of Ray have ranks of their own.
        """
        self._only = only
        self._board = ProgressBoard(attempt, self._board.take_events())
        self.ranks = RankBoard(attempt, self._loop.clock(), self.ranks.longest, self.ranks.start)
        self._pages.close()
        self._counts = {}

    def read(self) -> None:
        """Reads what has arrived, and the steps counted so far.

        A worker that has ended may have reported just before.
        """
        for _ in range(READS_AT_ONCE):
            try:
                datagram, descriptors = self._receive()
            except BlockingIOError:
                break
            report = worker_report.parse(datagram)
            if report is not None:
                self._add(report, self._loop.clock())
            for descriptor in descriptors:
                if report is not None and report["attempt"] == self._board.attempt:
                    self._pages.add(report["rank"], descriptor)
                else:
                    os.close(descriptor)
        self._read_pages()
        if self._pages and not self._is_reading_pages:
            self._is_reading_pages = True
            self._loop.later(names.STEP_PAGE_SECONDS, self._pages_due)

    def add(self, report: worker_report.WorkerReport) -> None:
        """Takes a valid report that came in another way."""
        self._add(report, self._loop.clock())
        self._tell()

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

    @property
    def counts(self) -> Dict[int, StepCount]:
        """The optimizer steps of this pod's forked workers in this attempt, by rank, as last read.

        Their times are on the clock of the loop.
        """
        return self._counts

    def close(self) -> None:
        self._pages.close()
        self._loop.unwatch(self._socket)
        self._socket.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def _receive(self) -> Tuple[bytes, List[int]]:
        """Returns a datagram and the descriptors that came with it, which are the caller's to close."""
        room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array("i").itemsize)
        datagram, ancillary, _flags, _address = self._socket.recvmsg(names.MAX_DATAGRAM_BYTES, room, CLOEXEC)
        descriptors = array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        return datagram, list(descriptors)

    def _read_pages(self) -> None:
        for rank, count in self._pages.read().items():
            if count != self._counts.get(rank):
                self._counts[rank] = count
                report = {"rank": rank, "attempt": self._board.attempt, "optimizerSteps": count.steps}
                self._add(report, count.last)

    def _add(self, report: worker_report.WorkerReport, now: float) -> None:
        if self._only is not None:
            report = {**report, "rank": self._only}
        self._board.add(report)
        self.ranks.add(report, now)

    def _pages_due(self) -> None:
        self._is_reading_pages = False
        if self._pages:
            self._ready()

    def _ready(self) -> None:
        self.read()
        self._tell()

    def _tell(self) -> None:
        due = self._loop.clock() - self._last_taken >= names.PROGRESS_SECONDS
        # All other reports go with the next heartbeat.
        if self._board.urgent or (self._board.rank == 0 and due):
            self.on_news()
