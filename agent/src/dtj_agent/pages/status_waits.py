"""Requests for /status that wait until something that matters has changed."""

from __future__ import annotations

import json
import time
from typing import Callable, List, Union

from dtj_agent.net.http_response import Deferred, Request, Response
from dtj_agent.net.loop import Loop, Timer
from dtj_agent.pages.status_version import status_version
from dtj_contract.agent_status import MAX_WAITING, AgentStatus

LOOK_SECONDS = 0.1
"""Between two looks at the page: several changes in a row are one answer, and a large group costs little."""


def until_whole_second(wait: float, now: float) -> float:
    """Returns a wait that ends at a whole second of Unix time, up to a second earlier than `wait`. Short ones stay."""
    return wait if wait < 2.0 else wait - (now + wait) % 1.0


class _Wait:
    def __init__(self, deferred: Deferred, known: str, timer: Timer) -> None:
        self.deferred = deferred
        self.known = known
        self.timer = timer


class StatusWaits:
    """Answers requests for the page that `make_page` returns, at once or when its version changes.

    Nothing is computed while nobody waits. A wait ends at a whole second of `wall`, so that whoever listens to the
    agents of many jobs is woken once a second, and not by each of them.
    """

    def __init__(
        self, loop: Loop, make_page: Callable[[], AgentStatus], *, wall: Callable[[], float] = time.time
    ) -> None:
        self._loop = loop
        self._make_page = make_page
        self._wall = wall
        self._waits: List[_Wait] = []  # the oldest first
        self._is_look_due = False
        self._looked_at = float("-inf")

    def __len__(self) -> int:
        return len(self._waits)

    def answer(self, request: Request) -> Union[Response, Deferred]:
        """Returns the page, or its place holder if the sender knows this version and waits for another."""
        page = self._page()
        if not request.wait or not request.after or request.after != page["statusVersion"]:
            return _response(page)
        if len(self._waits) >= MAX_WAITING:
            self._deliver(self._waits[0], _response(page))
        deferred = Deferred()
        seconds = until_whole_second(request.wait, self._wall())
        wait = _Wait(deferred, request.after, self._loop.later(seconds, lambda: self._expire(wait)))
        deferred.cancel = lambda: self._forget(wait)
        self._waits.append(wait)
        return deferred

    def touch(self) -> None:
        """Notes that the page may have changed. Cheap, so any event may call this."""
        if self._waits and not self._is_look_due:
            self._is_look_due = True
            self._loop.later(max(0.0, self._looked_at + LOOK_SECONDS - self._loop.clock()), self.look)

    def look(self) -> None:
        """Answers the requests that know another version of the page."""
        self._is_look_due, self._looked_at = False, self._loop.clock()
        if not self._waits:
            return
        page = self._page()
        changed = [wait for wait in self._waits if wait.known != page["statusVersion"]]
        response = _response(page) if changed else None
        for wait in changed:
            if response is not None:
                self._deliver(wait, response)

    def _expire(self, wait: _Wait) -> None:
        self._deliver(wait, _response(self._page()))

    def _deliver(self, wait: _Wait, response: Response) -> None:
        self._forget(wait)
        wait.deferred.deliver(response)

    def _forget(self, wait: _Wait) -> None:
        wait.timer.cancel()
        if wait in self._waits:
            self._waits.remove(wait)

    def _page(self) -> AgentStatus:
        page = self._make_page()
        page["statusVersion"] = status_version(page)
        return page


def _response(page: AgentStatus) -> Response:
    return Response(200, "application/json", json.dumps(page).encode())
