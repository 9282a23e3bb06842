"""The coordinator's effects: what its shell has to do after an event. Pure."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Union

from dtj_agent.group.messages import Message


class Send(NamedTuple):
    """A message to the peer on connection `conn`."""

    conn: int
    message: Message


class Close(NamedTuple):
    """Close connection `conn`."""

    conn: int


class WriteLease(NamedTuple):
    """Write `attempt` to the lease file unless it holds that or more; answer with `lease_done`."""

    attempt: int


class StepDown(NamedTuple):
    """Drop this coordinator: another one has gone further. `history`: that one's, if it is known."""

    why: str
    history: Optional[Message]


class Log(NamedTuple):
    """A line for the agent's log; the member uses this effect too."""

    text: str


Effect = Union[Send, Close, WriteLease, StepDown, Log]


class Outbox:
    """Collects the effects of the event that is being handled, in order."""

    def __init__(self) -> None:
        self._effects: List[Effect] = []

    def send(self, conn: int, message: Message) -> None:
        self._effects.append(Send(conn, message))

    def close(self, conn: int) -> None:
        self._effects.append(Close(conn))

    def write_lease(self, attempt: int) -> None:
        self._effects.append(WriteLease(attempt))

    def step_down(self, why: str, history: Optional[Message]) -> None:
        self._effects.append(StepDown(why, history))

    def log(self, text: str) -> None:
        self._effects.append(Log(text))

    def take(self) -> List[Effect]:
        """Returns the collected effects and empties the outbox."""
        effects, self._effects = self._effects, []
        return effects
