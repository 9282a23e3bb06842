"""One trial of each arm: a fresh group, whose members fail at once after a pause."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.ledger import Trial
from tests.lib.crowd import crowd
from tests.lib.huge_group import HugeGroup

IDLE_SECONDS = 12.0
"""Attempts that end soon would be held back."""


def sockets(members: int) -> Trial:
    """Measures a real coordinator and real sockets; the members share this process, whose work is part of the time."""
    with tempfile.TemporaryDirectory() as folder, crowd(Path(folder), members) as group:
        formed = group.until_attempt(1)
        group.run_for(IDLE_SECONDS)
        messages = group.messages()
        group.fail_all()
        seconds = group.until_attempt(2)
        return {
            "formed": round(formed, 3),
            "seconds": round(seconds, 4),
            "messages": round((group.messages() - messages) / members, 2),
            "bytes": group.resident() * 1024,
        }


def virtual(members: int) -> Trial:
    """Measures the state machines in virtual time; 150 us of each message are the coordinator's."""
    group = HugeGroup(members)
    group.form()
    seconds = group.fail_all()
    return {"seconds": round(seconds, 4), "messages": round(sum(group.messages.values()) / members, 2)}


ARMS: dict[str, Callable[[int], Trial]] = {"sockets": sockets, "virtual": virtual}
MEMBERS = {"sockets": [64, 512, 2048], "virtual": [4096]}
