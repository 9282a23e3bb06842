"""Requests for /status that wait: what ends the wait, what does not, and what older readers get."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.net.http_response import Deferred, Request, Response, parse
from dtj_agent.net.loop import Timer
from dtj_agent.pages.status_version import status_version
from dtj_agent.pages.status_waits import StatusWaits
from dtj_contract.agent_status import MAX_WAIT_SECONDS, MAX_WAITING
from tests.unit.agent.harness import PATIENCE, Group, running, token

LEADER = {"ordinal": 0, "pod": "j-0", "address": "10.0.0.1", "epoch": 1}
FAILURE = {"attempt": 1, "rank": 2, "ordinal": 1, "reason": "WorkerFailed", "message": "exit code 1"}
MEMBER = {"ordinal": 1, "pod": "j-1", "node": "n", "address": "10.0.0.2", "state": "running"}
RECOVERY = {"attempt": 2, "kind": "inPlace", "seconds": {"detect": 0.1, "load": 0.0}}


def page(**more: Any) -> Any:
    return {
        "version": 1, "job": "j", "uid": "u", "ordinal": 0, "attempt": 1, "phase": "Running", "phaseReason": "",
        "phaseMessage": "", "waitingFor": [], "replicas": 2, "worldSize": 2, "members": [MEMBER],
        "restarts": {"inPlace": 0, "pod": 0, "counted": 0}, "recoveries": [RECOVERY], "failures": [],
        "progress": {"step": 1}, "stepsUnknown": False, "checkpoint": None, "events": [], "productiveSeconds": 1.0,
        "startTime": 5.0, "outcome": None, "leader": LEADER, "stragglers": [],
    } | more  # fmt: skip


MATTERS: dict[str, Any] = {
    "another attempt": {"attempt": 2},
    "another phase": {"phase": "Stopping"},
    "another reason of the phase": {"phaseReason": "WorkerFailed"},
    "a failure": {"failures": [FAILURE]},
    "a restart": {"restarts": {"inPlace": 1, "pod": 0, "counted": 0}},
    "a phase of a recovery has ended": {"recoveries": [{**RECOVERY, "seconds": {"detect": 0.1, "load": 2.0}}]},
    "the outcome": {"outcome": {"attempt": 1, "result": "Succeeded", "reason": "AllWorkersSucceeded"}},
    "another leader": {"leader": {**LEADER, "ordinal": 1, "pod": "j-1"}},
    "a later epoch": {"leader": {**LEADER, "epoch": 2}},
    "no leader": {"leader": None},
    "a stuck member": {"members": [{**MEMBER, "state": "stuck"}]},
    "a member without workers": {"members": [{**MEMBER, "state": "idle"}]},
    "a straggler": {"stragglers": [{"rank": 3, "pod": "j-1", "node": "n", "ratio": 1.5}]},
    "a warning": {"events": [{"type": "Warning", "reason": "CheckpointFailed", "message": "m", "time": 7.0}]},
    "an empty memory": {"startTime": None},
    "a smaller group": {"replicas": 1},
    "steps that stay unknown": {"stepsUnknown": True},
    "no step yet": {"progress": None},
    "the first loss": {"progress": {"step": 1, "loss": 0.5}},
    "the first estimate of the end": {"progress": {"step": 1, "remainingSeconds": 60}},
}
WAITS: dict[str, Any] = {
    "a step": {"progress": {"step": 2}},
    "a counted step": {"progress": {"step": None, "optimizerSteps": 2}},
    "a checkpoint": {"checkpoint": {"step": 2, "path": "/c", "time": 3.0}},
    "productive time": {"productiveSeconds": 9.0},
    "a text that follows the time": {"phaseMessage": "waiting for j-1 (left 12 s ago)"},
    "an event that is no warning": {"events": [{"type": "Normal", "reason": "Saved", "message": "m", "time": 7.0}]},
}


@pytest.mark.parametrize("change", MATTERS.values(), ids=MATTERS)
def test_version_changes_with_what_matters(change: Any) -> None:
    assert status_version(page(**change)) != status_version(page())


@pytest.mark.parametrize("change", WAITS.values(), ids=WAITS)
def test_version_stays_for_mere_progress(change: Any) -> None:
    assert status_version(page(**change)) == status_version(page())


def test_version_stays_for_another_loss_and_another_estimate() -> None:
    earlier, later = (page(progress={"step": n, "loss": 1 / n, "remainingSeconds": 90 / n}) for n in (1, 2))
    assert status_version(earlier) == status_version(later)


REQUESTS: dict[str, tuple[str, str, float | None, bool]] = {
    "of the old form": ("/status HTTP/1.1", "", None, False),
    "without a version": ("/status?after=&wait=26 HTTP/1.1", "", 26.0, True),
    "with a version": ("/status?after=ab12&wait=26 HTTP/1.1", "ab12", 26.0, True),
    "that keeps the connection": ("/status?wait=0 HTTP/1.1", "", 0.0, True),
    "that waits too long": ("/status?wait=99999999999999 HTTP/1.1", "", MAX_WAIT_SECONDS, True),
    "with a negative wait": ("/status?wait=-1 HTTP/1.1", "", None, False),
    "with a wait that is no number": ("/status?wait=nan HTTP/1.1", "", None, False),
    "with a long version": ("/status?wait=1&after=" + "a" * 200 + " HTTP/1.1", "a" * 64, 1.0, True),
    "of HTTP/1.0": ("/status?wait=1 HTTP/1.0", "", 1.0, False),
    "that closes": ("/status?wait=1 HTTP/1.1\r\nConnection: Close", "", 1.0, False),
}


@pytest.mark.parametrize(("line", "after", "wait", "kept"), REQUESTS.values(), ids=REQUESTS)
def test_request_is_parsed_within_bounds(line: str, after: str, wait: float | None, kept: bool) -> None:
    request = parse(f"GET {line}".encode())
    assert request is not None
    assert (request.path, request.after, request.wait, request.is_kept) == ("/status", after, wait, kept)


class FakeLoop:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []

    def clock(self) -> float:
        return self.now

    def later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = Timer(callback)
        self.timers.append((self.now + seconds, timer))
        return timer

    def run_until(self, now: float) -> None:
        while due := [entry for entry in self.timers if entry[0] <= now]:
            first = min(due, key=lambda entry: entry[0])
            self.timers.remove(first)
            self.now = max(self.now, first[0])
            if not first[1].cancelled:
                first[1].callback()
        self.now = now


class Waits:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.page = page()
        self.made = 0
        self.waits = StatusWaits(self.loop, self._make, wall=self.loop.clock)  # type: ignore[arg-type]
        self.answers: list[tuple[float, Any]] = []

    def _make(self) -> Any:
        self.made += 1
        return dict(self.page)

    def ask(self, after: str | None = None, wait: float = 26.0) -> Response | Deferred:
        version = status_version(self.page) if after is None else after
        answer = self.waits.answer(Request("/status", "", "", version, wait))
        if isinstance(answer, Deferred):
            answer.deliver = lambda response: self.answers.append((self.loop.now, json.loads(response.body)))
        return answer

    def change(self, **more: Any) -> None:
        self.page = page(**more)
        self.waits.touch()


@pytest.mark.parametrize("after", ["", "another"])
def test_request_with_another_version_is_answered_at_once(after: str) -> None:
    waits = Waits()
    answer = waits.ask(after)
    assert isinstance(answer, Response)
    assert json.loads(answer.body)["statusVersion"] == status_version(page())


def test_request_without_a_wait_is_answered_at_once() -> None:
    assert isinstance(Waits().ask(wait=0.0), Response)


def test_progress_is_answered_when_the_wait_is_over() -> None:
    waits = Waits()
    waits.ask()
    for second in range(1, 30):
        waits.change(progress={"step": second})
        waits.loop.run_until(second)
    assert [(at, answer["progress"]["step"]) for at, answer in waits.answers] == [(26.0, 26)]
    assert len(waits.waits) == 0


@pytest.mark.parametrize(
    ("asked", "wait", "answered"),
    [(100.4, 26.0, 126.0), (100.0, 26.0, 126.0), (100.9, 2.0, 102.0), (100.9, 1.0, 101.9)],
)
def test_wait_ends_at_a_whole_second_unless_it_is_short(asked: float, wait: float, answered: float) -> None:
    waits = Waits()
    waits.loop.now = asked
    waits.ask(wait=wait)
    waits.loop.run_until(200.0)
    assert [at for at, _ in waits.answers] == [pytest.approx(answered)]


def test_change_is_answered_at_once_and_a_burst_of_changes_once() -> None:
    waits = Waits()
    waits.ask()
    waits.change(phase="Stopping")
    waits.loop.run_until(5.0)
    assert [at for at, _ in waits.answers] == [0.0]
    waits.ask()
    waits.change(progress={"step": 3}, phase="Stopping")
    waits.loop.run_until(5.05)
    waits.change(phase="Rendezvous")
    waits.change(phase="Running", attempt=2)
    waits.loop.run_until(6.0)
    assert [(round(at, 3), answer["attempt"]) for at, answer in waits.answers[1:]] == [(5.1, 2)]


def test_nothing_is_computed_while_nobody_waits() -> None:
    waits = Waits()
    waits.change(phase="Stopping")
    waits.loop.run_until(100.0)
    assert waits.made == 0


def test_cancelled_wait_is_forgotten() -> None:
    waits = Waits()
    answer = waits.ask()
    assert isinstance(answer, Deferred)
    answer.cancel()
    waits.change(phase="Stopping")
    waits.loop.run_until(100.0)
    assert (waits.answers, len(waits.waits)) == ([], 0)


def test_one_wait_too_many_ends_the_oldest() -> None:
    waits = Waits()
    for second in range(MAX_WAITING + 1):
        waits.loop.run_until(second)
        waits.ask()
    assert [at for at, _ in waits.answers] == [MAX_WAITING]
    assert len(waits.waits) == MAX_WAITING


# --- real agents ------------------------------------------------------------------------------------------------------


class Listener:
    """A kept connection to one agent."""

    def __init__(self, group: Group, ordinal: int, authorization: str = "") -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", group.ports[ordinal], timeout=PATIENCE)
        self.authorization = authorization
        self.version = ""
        self.sockets: set[int] = set()

    def ask(self, wait: int = MAX_WAIT_SECONDS) -> dict[str, Any]:
        headers = {"Authorization": self.authorization or token()}
        self.connection.request("GET", f"/status?after={self.version}&wait={wait}", headers=headers)
        assert self.connection.sock is not None
        self.sockets.add(self.connection.sock.getsockname()[1])
        with self.connection.getresponse() as answer:
            if answer.status != 200:
                raise urllib.error.HTTPError("", answer.status, "", answer.headers, None)
            found: dict[str, Any] = json.loads(answer.read())
        self.version = found["statusVersion"]
        return found

    def ask_until(self, there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Listens until a page is as wanted. Returns that page."""
        deadline = time.monotonic() + PATIENCE
        while not there(found := self.ask()):
            assert time.monotonic() < deadline, found
        return found


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running(tmp_path_factory.mktemp("group") / "g", 2, DTJ_MAX_RESTARTS="20") as group:
        group.wait_attempt(1)
        yield group


def leader(group: Group) -> int:
    found = group.status()
    assert found, group.logs()
    return int(found["ordinal"])


def test_listener_hears_of_a_failure_and_the_next_attempt_on_one_connection(group: Group) -> None:
    listener = Listener(group, leader(group))
    before = listener.ask()["attempt"]
    group.tell("exit-1", "7")
    heard = listener.ask_until(lambda found: found["attempt"] > before and found["phase"] == "Running")
    assert heard["failures"][-1]["exitCode"] == 7
    assert len(listener.sockets) == 1, "the connection is kept"


def test_listener_gets_progress_when_its_wait_is_over(group: Group) -> None:
    group.wait_attempt(group.status()["attempt"], 1)
    listener = Listener(group, leader(group))
    first = listener.ask_until(lambda found: found["progress"] is not None)
    began = time.monotonic()
    second = listener.ask(wait=2)
    while second["statusVersion"] != first["statusVersion"]:  # the last restart is still being reported
        first, began = second, time.monotonic()
        second = listener.ask(wait=2)
    assert time.monotonic() - began >= 0.9, "a wait ends at a whole second"
    assert second["progress"]["step"] > first["progress"]["step"]


def test_wait_without_the_token_is_refused_at_once(group: Group) -> None:
    began = time.monotonic()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        Listener(group, 0, "Bearer wrong").ask()
    assert time.monotonic() - began < MAX_WAIT_SECONDS / 2


def test_request_of_the_old_form_is_answered_at_once_and_closed(group: Group) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", group.ports[0], timeout=PATIENCE)
    connection.request("GET", "/status", headers={"Authorization": token()})
    with connection.getresponse() as answer:
        assert answer.getheader("Connection") == "close"
        assert "statusVersion" not in json.loads(answer.read())


def test_many_listeners_leave_room_for_the_group_and_for_each_other(group: Group) -> None:
    ordinal = leader(group)
    listeners = [Listener(group, ordinal) for _ in range(3 * MAX_WAITING)]
    for listener in listeners:
        listener.ask(wait=0)
    heard: list[int] = []

    def listen(listener: Listener, number: int) -> None:
        listener.ask()
        heard.append(number)

    threads = [threading.Thread(target=listen, args=(one, number)) for number, one in enumerate(listeners)]
    for thread in threads:
        thread.start()
    assert group.status(ordinal)["phase"] == "Running", "the port still answers"
    group.tell("exit-0", "1")
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(heard) == list(range(len(listeners)))


def test_listener_of_a_follower_hears_that_the_leader_is_gone(tmp_path: Path) -> None:
    with running(tmp_path / "g", 3, DTJ_MAX_RESTARTS="20") as group:
        group.wait_attempt(1)
        first = leader(group)
        other = next(ordinal for ordinal in range(3) if ordinal != first)
        listener = Listener(group, other)
        assert listener.ask()["leader"]["ordinal"] == first
        os.kill(group.agents[first].pid, signal.SIGKILL)
        group.agents[first].wait(PATIENCE)
        found = listener.ask_until(lambda found: not found["leader"] or found["leader"]["ordinal"] != first)
        assert found["ordinal"] == other


def test_outcome_is_heard_before_the_agent_exits(tmp_path: Path) -> None:
    with running(tmp_path / "g", 1) as group:
        group.wait_attempt(1)
        listener = Listener(group, 0)
        listener.ask()
        group.tell("finish")
        assert listener.ask_until(lambda found: bool(found["outcome"]))["outcome"]["result"] == "Succeeded"
        assert group.wait_exit(0) == 0
