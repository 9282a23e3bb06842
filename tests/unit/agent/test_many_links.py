"""Links of a large group: descriptors, connections that arrive together, messages encoded once."""

from __future__ import annotations

import json
import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from dtj_agent.errors import WireError
from dtj_agent.net import encoding
from dtj_agent.net.auth import Session
from dtj_agent.net.descriptors import OWN_DESCRIPTORS, PER_MEMBER, make_room, new_limits
from dtj_agent.net.encoding import SharedEncoder, encode
from dtj_agent.net.loop import Loop
from dtj_agent.net.server import AgentServer
from dtj_contract import names
from tests.lib.crowd import crowd

UNLIMITED = resource.RLIM_INFINITY
LIMITS = {
    "enough": (500, (1024, 4096), (1024, 4096)),
    "too low": (3000, (1024, 4096), (3000, 4096)),
    "too low, hard limit too": (9000, (1024, 4096), (4096, 4096)),
    "too low, no hard limit": (9000, (1024, UNLIMITED), (9000, UNLIMITED)),
    "no limit": (9000, (UNLIMITED, UNLIMITED), (UNLIMITED, UNLIMITED)),
}


@pytest.mark.parametrize(("needed", "limits", "expected"), LIMITS.values(), ids=LIMITS)
def test_descriptor_limit_is_raised_as_far_as_needed(
    needed: int, limits: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert new_limits(needed, limits) == expected


def test_agent_makes_room_for_the_links_of_its_members() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
        assert make_room(100) == ""
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (OWN_DESCRIPTORS + PER_MEMBER * 100, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_too_low_hard_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    assert make_room(1000).startswith("the limit of 1024 open files is too low for 1000 agents")


def test_connections_that_arrive_together_are_accepted_in_one_turn() -> None:
    loop = Loop()
    server = AgentServer(loop, ("127.0.0.1", 0), b"k" * 64, {}, lambda link, address: None)
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
    try:
        loop.run_once()
        assert len(server._unproven) == 8
    finally:
        server.close()
        for client in clients:
            client.close()


def test_shared_history_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []
    monkeypatch.setattr(encoding, "encode", lambda message: encoded.append(message) or encode(message))
    history = {"attempt": 1, "events": ["é"]}
    encoder, starts = SharedEncoder(), [{"type": "start", "nodeRank": rank, "history": history} for rank in range(3)]
    assert [json.loads(encoder.encode(start)) for start in starts] == starts
    broadcast = {"type": "history", "history": history}
    assert [json.loads(encoder.encode(broadcast)) for _ in range(3)] == [broadcast] * 3
    assert encoded.count(history) == 1
    assert len(encoded) == 5, "the history, and the rest of each different message"
    later = {"type": "history", "history": {"attempt": 2, "events": []}}
    assert json.loads(encoder.encode(later)) == later


def test_encoded_message_that_is_too_long_is_rejected() -> None:
    with pytest.raises(WireError, match="too long"):
        Session(b"k" * 64, client=True).seal_encoded(b'"' + b"x" * names.MAX_FRAME_BYTES + b'"')


def test_512_members_that_fail_at_once_start_the_next_attempt(tmp_path: Path) -> None:
    """benchmarks/group measures the time: at most 2 s on an idle machine."""
    size = 512
    with crowd(tmp_path, size) as group:
        group.until_attempt(1)
        group.fail_all()
        group.until_attempt(2)
        assert group.resident() * 1024 <= 20 * 2**20 + size * 10_000
