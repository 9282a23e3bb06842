"""The shell around the coordinator: an effect that fails does not stop the next ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtj_agent.coordinator_shell import CoordinatorShell
from dtj_agent.errors import WireError
from dtj_agent.group import effects
from dtj_agent.net.auth import Session
from dtj_contract import names


class Coordinator:
    """Answers each join with prepared effects."""

    def __init__(self) -> None:
        self.answers: list[list[effects.Effect]] = []
        self.breaks = False

    def joined(self, conn: int, hello: Any, now: Any) -> list[effects.Effect]:
        return self.answers.pop(0)

    def received(self, conn: int, message: Any, now: Any) -> list[effects.Effect]:
        if self.breaks:
            raise KeyError("breaks")
        return []

    def left(self, conn: int, silence: float, now: Any) -> list[effects.Effect]:
        return [effects.Log(f"{conn} left")]


class Link:
    """Seals as a real one does."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[Any] = []
        self.closed = ""
        self.on_close: Any = None

    def send_encoded(self, payload: bytes) -> None:
        Session(b"k" * 32, client=False).seal_encoded(payload)
        self.sent.append(json.loads(payload))

    def close(self, reason: str) -> None:
        self.closed = reason
        self.on_close(reason, 0.0)


class Loop:
    def clock(self) -> float:
        return 0.0


def coordinator_shell() -> tuple[CoordinatorShell, Coordinator, list[str]]:
    log: list[str] = []
    coordinator = Coordinator()
    return CoordinatorShell(Loop(), coordinator, None, log.append), coordinator, log  # type: ignore[arg-type]


def test_too_long_message_closes_only_its_own_link() -> None:
    shell, coordinator, log = coordinator_shell()
    first, second = Link(1), Link(2)
    huge = {"type": "history", "history": "x" * names.MAX_FRAME_BYTES}
    coordinator.answers = [[], [effects.Send(1, huge), effects.Send(2, {"type": "beat"})]]
    shell.join(first, {})  # type: ignore[arg-type]
    shell.join(second, {})  # type: ignore[arg-type]
    assert "too long" in first.closed
    assert (second.closed, second.sent) == ("", [{"type": "beat"}])
    assert [line for line in log if "can't be sent" in line]
    assert "1 left" in log


def test_effect_that_raises_does_not_stop_later_effects() -> None:
    shell, coordinator, _ = coordinator_shell()
    shell._log = lambda text: (_ for _ in ()).throw(WireError(text))  # type: ignore[method-assign]
    coordinator.answers = [[effects.Log("breaks")], [effects.Send(2, {"type": "beat"})]]
    with pytest.raises(WireError):
        shell.join(Link(1), {})  # type: ignore[arg-type]
    second = Link(2)
    shell.join(second, {})  # type: ignore[arg-type]
    assert second.sent == [{"type": "beat"}]


def test_message_that_raises_closes_only_its_own_link() -> None:
    """A member repeats its message after each restart of pod 0's agent, which must therefore survive it."""
    shell, coordinator, log = coordinator_shell()
    coordinator.answers = [[], [], [effects.Send(2, {"type": "beat"})]]
    first, second, third = Link(1), Link(2), Link(3)
    shell.join(first, {})  # type: ignore[arg-type]
    shell.join(second, {})  # type: ignore[arg-type]
    coordinator.breaks = True
    first.on_message({"type": "event"})
    coordinator.breaks = False
    assert (first.closed, second.closed) == ("a message that can't be handled", "")
    assert [line for line in log if "KeyError" in line]
    assert "1 left" in log
    shell.join(third, {})  # type: ignore[arg-type]
    assert second.sent == [{"type": "beat"}]
