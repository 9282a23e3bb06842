"""The coordinator's work and messages per message of a member do not grow with the group.

Work is counted in bytecode instructions, which do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from dtj_agent.group import effects
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History
from dtj_agent.group.messages import PROTOCOL_VERSION, Now, check

SMALL, LARGE = 32, 256
GROWTH = 1.2
"""Shared by the members of a larger group: the start and the end of an attempt cost less for each."""


def instructions(call: Callable[[], Any]) -> int:
    """Returns how many bytecode instructions the call executes."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


class Group:
    """A coordinator and its members' messages; counts instructions and sent messages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.time = 1000.0
        self.sent = 0
        self.leases: list[int] = []
        self.coordinator = Coordinator(GroupSpec("uid", size, 1, max_restarts=100), History(), None, self.now())

    def now(self) -> Now:
        return Now(self.time, 1_790_000_000.0 + self.time)

    def do(self, new: list[effects.Effect]) -> None:
        for effect in new:
            self.sent += isinstance(effect, effects.Send)
            if isinstance(effect, effects.WriteLease):
                self.leases.append(effect.attempt)

    def granted(self) -> None:
        self.do(self.coordinator.lease_done(self.leases[-1], None, None, self.now()))

    def join(self, ordinal: int, generation: int = 0, **changes: Any) -> None:
        hello = {
            "type": "hello", "version": PROTOCOL_VERSION, "uid": "uid", "ordinal": ordinal,
            "incarnation": f"i{ordinal}", "pod": f"j-{ordinal}", "node": "n",
            "address": "10.0.0.1", "port": 1, "state": "idle", "attempt": 0,
            "history": History().to_json(), "outcome": None, "crashed": False, "interrupted": None, **changes,
        }  # fmt: skip
        self.do(self.coordinator.joined(generation * self.size + ordinal, check(hello), self.now()))

    def each(self, type_: str, generation: int = 0, **fields: Any) -> None:
        """Sends the message from every member."""
        for ordinal in range(self.size):
            message = check({"type": type_, **fields})
            self.do(self.coordinator.received(generation * self.size + ordinal, message, self.now()))

    def join_all(self) -> None:
        for ordinal in range(self.size):
            self.join(ordinal)

    def run(self) -> Group:
        self.join_all()
        self.granted()
        return self

    def fail(self) -> None:
        self.each("failed", attempt=1, failures=[{"rank": 0, "exitCode": 1, "logTail": "", "oom": False}])

    def stop(self) -> None:
        self.each("stopped", attempt=1, port=1)

    def reconnect(self) -> None:
        """Breaks every connection; every agent is back before the group has settled."""
        for ordinal in range(self.size):
            self.do(self.coordinator.left(ordinal, 0.1, self.now()))
        interrupted = {"attempt": 1, "silence": 0.1, "ago": 0.1, "step": None}
        for ordinal in range(self.size):
            self.join(ordinal, 1, attempt=1, interrupted=interrupted)


def missing_one(group: Group) -> Group:
    for ordinal in range(1, group.size):
        group.join(ordinal)
    return group


def failed(group: Group) -> Group:
    group.run().fail()
    return group


def over(group: Group) -> Group:
    group.run().each("done", attempt=1, port=1)
    return group


EVENT = {"type": "Warning", "reason": "Slow", "message": "m"}
STAGES: dict[str, tuple[Callable[[Group], Any], Callable[[Group], Any]]] = {
    "all join": (lambda group: None, Group.join_all),
    "beats while one is missing": (missing_one, lambda group: group.each("beat")),
    "beats while the lease is written": (Group.join_all, lambda group: group.each("beat")),
    "the attempt starts": (Group.join_all, Group.granted),
    "beats while all run": (Group.run, lambda group: group.each("beat")),
    "progress of all": (Group.run, lambda group: group.each("progress", attempt=1, progress={"rank": 0, "step": 1})),
    "events of all": (Group.run, lambda group: group.each("event", event=EVENT)),
    "all fail": (Group.run, Group.fail),
    "all report that they have stopped": (failed, Group.stop),
    "all connections break and are back": (Group.run, Group.reconnect),
    "all are done": (Group.run, lambda group: group.each("done", attempt=1, port=1)),
    "all have the outcome": (over, lambda group: group.each("finished")),
}


def measured(size: int, before: Callable[[Group], Any], stage: Callable[[Group], Any]) -> tuple[float, float]:
    """Returns instructions and sent messages per member."""
    group = Group(size)
    before(group)
    sent = group.sent
    work = instructions(lambda: stage(group))
    return work / size, (group.sent - sent) / size


@pytest.mark.parametrize(("before", "stage"), STAGES.values(), ids=STAGES)
def test_work_per_member_does_not_grow_with_the_group(
    before: Callable[[Group], Any], stage: Callable[[Group], Any]
) -> None:
    small, few = measured(SMALL, before, stage)
    large, many = measured(LARGE, before, stage)
    assert large <= GROWTH * small + 50, f"{small:.0f} instructions per member at {SMALL}, {large:.0f} at {LARGE}"
    assert many <= few + 1, f"{few:.1f} messages per member at {SMALL}, {many:.1f} at {LARGE}"


def test_released_coordinator_is_known_without_a_look_at_all_members() -> None:
    small, large = (Group(size) for size in (SMALL, LARGE))
    over(small)
    over(large)
    assert instructions(lambda: large.coordinator.released) == instructions(lambda: small.coordinator.released)
    large.each("finished")
    assert large.coordinator.released
