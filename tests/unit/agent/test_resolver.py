"""Names of peers while DNS has another answer, none, or none in time. getaddrinfo is replaced, as no DNS here fails."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dtj_agent.net.loop import Loop
from dtj_agent.net.resolver import KNOWN_SECONDS, Resolver
from dtj_agent.settings import Address

NAME: Address = ("digits-1.digits", 29400)
OLD, NEW = "10.244.1.5", "10.244.2.9"
TIMEOUT = 20.0


class Dns:
    """Answers with `addresses`, or that there are none, once `open` is set."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.open = threading.Event()
        self.asked = 0

    def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        assert self.open.wait(TIMEOUT)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dns]:
    made = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.open.set()


def ask(loop: Loop, resolver: Resolver, times: int = 1) -> list[tuple[list[str], str]]:
    """Returns the answers to questions that are asked at once."""
    answers: list[tuple[list[str], str]] = []
    began = loop.clock()
    for _ in range(times):
        resolver.resolve(NAME, lambda found, why: answers.append(([host for host, _ in found], why)))
    while len(answers) < times:
        assert loop.clock() < began + TIMEOUT
        loop.later(0.01, lambda: None)
        loop.run_once()
    return answers


def known(loop: Loop) -> Resolver:
    resolver = Resolver(loop)
    resolver.remember(NAME, (OLD, 29400))
    return resolver


def test_peer_that_was_reached_before_is_called_while_dns_is_silent(dns: Dns) -> None:
    loop = Loop()
    began = loop.clock()
    assert ask(loop, known(loop)) == [([OLD], "")]
    assert KNOWN_SECONDS <= loop.clock() - began < TIMEOUT


def test_peer_that_was_reached_before_is_called_if_dns_has_no_answer(dns: Dns) -> None:
    dns.open.set()
    loop = Loop()
    assert ask(loop, known(loop)) == [([OLD], "")]


def test_address_of_dns_goes_before_the_last_known_one(dns: Dns) -> None:
    dns.addresses = [NEW]
    dns.open.set()
    loop = Loop()
    assert ask(loop, known(loop)) == [([NEW, OLD], "")]


def test_peer_that_was_never_reached_has_no_address_without_dns(dns: Dns) -> None:
    dns.open.set()
    loop = Loop()
    ((found, why),) = ask(loop, Resolver(loop))
    assert found == []
    assert "digits-1.digits does not resolve" in why


def test_calls_that_wait_for_the_same_name_share_one_question(dns: Dns) -> None:
    loop = Loop()
    resolver = known(loop)
    assert ask(loop, resolver, times=3) == [([OLD], "")] * 3
    assert ask(loop, resolver, times=2) == [([OLD], "")] * 2
    assert dns.asked == 1, "no thread waits for DNS but the first"


def test_only_an_address_is_kept_for_a_name(dns: Dns) -> None:
    dns.open.set()
    loop = Loop()
    resolver = Resolver(loop)
    resolver.remember(NAME, ("another-name", 29400))
    assert ask(loop, resolver)[0][0] == []
