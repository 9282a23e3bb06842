"""A coordinator under test, with members that answer like real ones."""

from __future__ import annotations

from typing import Any

from dtj_agent.group import effects as coordinator_effects
from dtj_agent.group.coordinator import Coordinator
from dtj_agent.group.group_spec import GroupSpec
from dtj_agent.group.history import History
from dtj_agent.group.messages import PROTOCOL_VERSION, Now, check

WALL = 1_790_000_000.0


class CoordinatorHarness:
    """Carries out the coordinator's effects; time stands still unless it is moved."""

    def __init__(
        self,
        replicas: int = 3,
        history: History | None = None,
        final: dict[str, Any] | None = None,
        ordinal: int = 0,
        **spec: Any,
    ) -> None:
        self.time = 1000.0
        self.coordinator = Coordinator(
            GroupSpec("uid", replicas, 2, job="j", **spec), history or History(), final, self.now(), ordinal
        )
        self.sent: list[tuple[int, dict[str, Any]]] = []  # ordinal, message
        self.closed: list[int] = []
        self.leases: list[int] = []
        self.log: list[str] = []
        self.grants = True
        self.promises = True
        self.stepped_down: list[coordinator_effects.StepDown] = []

    def now(self) -> Now:
        return Now(self.time, WALL + self.time)

    def do(self, effects: list[coordinator_effects.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, coordinator_effects.Send):
                self.sent.append((effect.conn % 10, check(effect.message)))
                if effect.message["type"] == "promise" and self.promises:
                    promised = {"type": "promised", "attempt": effect.message["attempt"], "granted": True, "known": 0}
                    self.do(self.coordinator.received(effect.conn, check(promised), self.now()))
            elif isinstance(effect, coordinator_effects.Close):
                self.closed.append(effect.conn)
            elif isinstance(effect, coordinator_effects.StepDown):
                self.stepped_down.append(effect)
            elif isinstance(effect, coordinator_effects.Log):
                self.log.append(effect.text)
            elif isinstance(effect, coordinator_effects.WriteLease):
                self.leases.append(effect.attempt)
                if self.grants:
                    self.do(self.coordinator.lease_done(effect.attempt, None, None, self.now()))

    def logged(self, text: str) -> bool:
        """Returns whether `text` was logged since the last call."""
        log, self.log = self.log, []
        return text in log

    def hello(self, ordinal: int, **changes: Any) -> dict[str, Any]:
        hello = {
            "type": "hello", "version": PROTOCOL_VERSION, "uid": "uid", "ordinal": ordinal,
            "incarnation": f"i{ordinal}", "pod": f"j-{ordinal}", "node": f"w{ordinal}",
            "address": f"10.0.0.{ordinal}", "port": 20000 + ordinal, "state": "idle", "attempt": 0,
            "history": History().to_json(), "outcome": None, "crashed": False, "interrupted": None,
        }  # fmt: skip
        return check({**hello, **changes})

    def join(self, ordinal: int, generation: int = 0, **changes: Any) -> None:
        """Joins a member; connection numbers end with the ordinal."""
        self.do(self.coordinator.joined(generation * 10 + ordinal, self.hello(ordinal, **changes), self.now()))

    def leave(self, ordinal: int, generation: int = 0, silence: float = 0.0) -> None:
        self.do(self.coordinator.left(generation * 10 + ordinal, silence, self.now()))

    def receive(self, ordinal: int, type_: str, generation: int = 0, **fields: Any) -> None:
        self.do(self.coordinator.received(generation * 10 + ordinal, check({"type": type_, **fields}), self.now()))

    def fail(self, ordinal: int, exit_code: int = 1, tail: str = "", attempt: int = 1, oom: bool = False) -> None:
        rank = ordinal * 2
        failure = {"rank": rank, "exitCode": exit_code, "logTail": tail, "oom": oom}
        self.receive(ordinal, "failed", attempt=attempt, failures=[failure])

    def stopped(self, *ordinals: int, attempt: int = 1) -> None:
        for ordinal in ordinals:
            self.receive(ordinal, "stopped", attempt=attempt, port=21000 + ordinal)

    def wait(self, seconds: float) -> None:
        self.time += seconds
        self.do(self.coordinator.tick(self.now()))

    def running(self, **spec: Any) -> CoordinatorHarness:
        for ordinal in range(self.coordinator.spec.replicas):
            self.join(ordinal)
        self.sent.clear()
        return self

    def messages(self, type_: str) -> list[tuple[int, dict[str, Any]]]:
        return [(ordinal, message) for ordinal, message in self.sent if message["type"] == type_]
