"""Thousands of members in virtual time: the state machines are the real ones, the coordinator's speed is assumed."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Any

from dtj_agent.group import effects, member
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History
from dtj_agent.group.member import Identity, Member
from dtj_agent.group.messages import Message, Now, check
from dtj_agent.group.worker_exit import WorkerExit

DELAY_SECONDS = 0.005
COST_SECONDS = 150e-6
"""Of each message that the coordinator reads or writes, one after the other; measured: benchmarks/group."""


class HugeGroup:
    """Members without faults; connection n is that of member n."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.time = self.free = 0.0
        self.messages: Counter[str] = Counter()
        self.started: Counter[int] = Counter()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.coordinator = Coordinator(GroupSpec("uid", size, 1, max_restarts=10), History(), None, self.now())
        self.members = [Member(Identity("uid", n, f"i{n}", f"j-{n}", "n", "a", 5.0), {}, None) for n in range(size)]

    def now(self) -> Now:
        return Now(self.time, 1_790_000_000.0 + self.time)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.time + seconds, self.count, call))

    def busy(self) -> float:
        """Returns the seconds until the coordinator has handled one message more."""
        self.free = max(self.free, self.time) + COST_SECONDS
        return self.free - self.time

    def coordinator_does(self, new: list[effects.Effect]) -> None:
        for effect in new:
            if isinstance(effect, effects.Send):
                self.messages[effect.message["type"]] += 1
                self.after(self.busy() + DELAY_SECONDS, lambda e=effect: self.down(e.conn, e.message))  # type: ignore[misc]
            elif isinstance(effect, effects.WriteLease):
                self.after(0.02, lambda e=effect: self.granted(e.attempt))  # type: ignore[misc]

    def granted(self, attempt: int) -> None:
        self.coordinator_does(self.coordinator.lease_done(attempt, None, None, self.now()))

    def down(self, ordinal: int, message: Message) -> None:
        self.member_does(ordinal, self.members[ordinal].received(check(message), self.now()))

    def member_does(self, ordinal: int, new: list[member.Effect]) -> None:
        who = self.members[ordinal]
        for effect in new:
            if isinstance(effect, member.SendToCoordinator):
                self.messages[effect.message["type"]] += 1
                self.after(DELAY_SECONDS, lambda m=effect.message: self.arrive(ordinal, m))  # type: ignore[misc]
            elif isinstance(effect, member.Spawn):
                self.started[effect.attempt] += 1
                who.spawned([effect.node_rank])
            elif isinstance(effect, member.Stop):
                self.after(0.01, lambda: self.member_does(ordinal, who.workers_gone(self.now())))

    def arrive(self, ordinal: int, message: Message) -> None:
        handle: Any = self.coordinator.joined if message["type"] == "hello" else self.coordinator.received
        self.after(self.busy(), lambda: self.coordinator_does(handle(ordinal, check(message), self.now())))

    def tick(self) -> None:
        self.after(1.0, self.tick)
        self.coordinator_does(self.coordinator.tick(self.now()))

    def until(self, condition: Callable[[], bool]) -> float:
        began = self.time
        while not condition():
            self.time, _, call = heapq.heappop(self.events)
            call()
            assert self.time - began < 60
        return self.time - began

    def form(self) -> None:
        """Connects all members, and runs them until the first attempt has started on all."""
        self.tick()
        for ordinal, who in enumerate(self.members):
            self.member_does(ordinal, who.connected(self.now()))
        self.until(lambda: self.started[1] == self.size)

    def fail_all(self) -> float:
        """Ends all workers at once. Returns the seconds until the next attempt has started on all members."""
        self.messages.clear()
        attempt = max(self.started)
        for ordinal, who in enumerate(self.members):
            failed = WorkerExit(who.ranks[0], 1, False, "Traceback", False)
            self.member_does(ordinal, who.exited(attempt, [failed], self.now()))
        return self.until(lambda: self.started[attempt + 1] == self.size)
