"""The knowledge that an agent passes on to its election, and the peers that it calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dtj_agent.group.election import FOLLOWING, LEADING, Election, Lead, Leader
from dtj_agent.group.history import History
from dtj_agent.group.member import Identity, Member
from dtj_agent.group.messages import Now
from dtj_agent.leadership import Leadership
from dtj_agent.net.announce import Announcer
from dtj_contract import names

PODS = 64


class Link:
    """A connection that keeps what is sent."""

    is_open = True

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def close_when_written(self) -> None:
        pass

    def dial(self, address: tuple[str, int]) -> None:
        pass

    def leave(self) -> None:
        pass


def leader(ordinal: int, attempt: int = 0) -> Leader:
    return Leader(ordinal, f"i{ordinal}", (f"10.0.0.{ordinal}", 29400), 0, attempt)


class Follower:
    """The agent of pod 2, which pod 0 leads; it has joined at attempt 0, and runs attempt 6 now."""

    def __init__(self) -> None:
        self.member = Member(Identity("uid", 2, "i2", "j-2", "n", "10.0.0.2", 3.0), {}, None)
        settings: Any = SimpleNamespace(address="10.0.0.2", peer_count=4, uid="uid", ordinal=2, secret=b"")
        loop: Any = SimpleNamespace(clock=lambda: 0.0, later=lambda seconds, call: None)
        ignored: Any = lambda *_: None  # noqa: E731
        link: Any = Link()
        own = ("127.0.0.1", 1)
        self.leadership = Leadership(loop, ignored, settings, self.member, link, own, ignored, ignored, ignored)
        self.announced(leader(0))
        self.leadership._received({"type": "history", "history": History().to_json(), "epoch": 0})
        history = History()
        history.attempt = 6
        start = {
            "type": "start", "attempt": 6, "nodeRank": 0, "nodes": 1, "masterAddr": "a", "masterPort": 1,
            "history": history.to_json(), "epoch": 0,
        }  # fmt: skip
        self.leadership._received(start)
        self.member.received(start, Now(0.0, 0.0))

    def announced(self, caller: Leader) -> dict[str, Any]:
        """Lets another leader call, and returns the answer to it."""
        link: Any = Link()
        message = {"type": "announce", "uid": "uid", "ordinal": caller.ordinal, "leader": caller.to_json()}
        self.leadership.accept(link, message)
        answer: dict[str, Any] = link.sent[0]
        return answer

    def answered(self, named: Leader) -> None:
        """Lets a called peer name a leader."""
        known = {"type": "known", "me": leader(1).to_json(), "leader": named.to_json(), "attempt": 0}
        self.leadership._answered(1, known)

    @property
    def follows(self) -> tuple[str, int]:
        found = self.leadership._election.leader
        return self.leadership._election.state, -1 if found is None else found.ordinal


@pytest.mark.parametrize("way", ["announced", "answered"])
def test_follower_in_a_later_attempt_keeps_its_leader(way: str) -> None:
    follower = Follower()
    getattr(follower, way)(leader(3, 5))
    assert follower.follows == (FOLLOWING, 0)


def test_leader_in_a_later_attempt_stays_when_a_peer_names_a_stale_one() -> None:
    agent = Follower()
    coordinator = SimpleNamespace(epoch=SimpleNamespace(number=6), history=SimpleNamespace(attempt=6))
    shell: Any = SimpleNamespace(coordinator=coordinator, heard_of=lambda attempt: None)
    agent.leadership.shell = shell
    agent.leadership._election._lead()
    agent.answered(leader(3, 5))
    assert agent.follows == (LEADING, 2)


def test_follower_joins_a_leader_of_a_later_attempt() -> None:
    follower = Follower()
    follower.announced(leader(3, 7))
    assert follower.follows[1] == 3


def test_agent_whose_pod_terminates_answers_that_it_leaves() -> None:
    follower = Follower()
    assert follower.announced(leader(0))["leaving"] is False
    follower.member.terminate(Now(0.0, 0.0))
    assert follower.announced(leader(0))["leaving"] is True


def searching() -> Follower:
    """Returns an agent that has called peers 0 and 1 and waits for both."""
    agent = Follower()
    agent.leadership._election = Election(agent.leadership._election.me, 2)
    agent.leadership._announcer.call = lambda ordinals, message: None  # type: ignore[method-assign]
    agent.leadership.start()
    agent.leadership._failed(0, "no answer")
    return agent


def test_search_passes_over_a_peer_whose_pod_terminates() -> None:
    agent = searching()
    made: list[Any] = []
    agent.leadership._do = made.extend  # type: ignore[method-assign]
    known = {"type": "known", "me": leader(1).to_json(), "leader": None, "attempt": 0}
    agent.leadership._answered(1, {**known, "leaving": True})
    assert [type(effect) for effect in made][:1] == [Lead]
    assert agent.follows == (LEADING, 2)


def test_search_joins_a_lower_peer_that_stays() -> None:
    agent = searching()
    known = {"type": "known", "me": leader(1).to_json(), "leader": None, "attempt": 0}
    agent.leadership._answered(1, {**known, "leaving": False})
    assert agent.follows[1] == 1


class Unreachable:
    """Names of pods that do not resolve; each answer comes after the round of calls."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._waiting: list[Any] = []

    def resolve(self, address: int, callback: Any) -> None:
        self.asked.append(address)
        self._waiting.append(callback)

    def fail(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback([], "does not resolve")


def test_rounds_of_calls_reach_every_peer_though_the_first_fail_at_once() -> None:
    resolver: Any = Unreachable()
    settings: Any = SimpleNamespace(ordinal=40, secret=b"", peer=lambda ordinal: ordinal)
    loop: Any = None
    announcer = Announcer(loop, resolver, settings)
    others = [ordinal for ordinal in range(PODS) if ordinal != 40]
    for _ in range(2):
        announcer.call(others, {})
        assert len(announcer._calls) == names.ANNOUNCE_AT_ONCE
        resolver.fail()
    assert sorted(set(resolver.asked)) == others
