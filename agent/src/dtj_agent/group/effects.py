"""The coordinator's words: what it decides on, and what it wants done."""

from __future__ import annotations

from typing import NamedTuple, Union

from dtj_agent.group.messages import Message, Now
from dtj_contract import names


class Send(NamedTuple):
    """A message to the peer on connection `conn`."""

    conn: int
    message: Message


class Close(NamedTuple):
    conn: int


class WriteLease(NamedTuple):
    """Write `attempt` to the lease file unless it holds that or more; answer with `Coordinator.lease_done`."""

    attempt: int


class Log(NamedTuple):
    text: str


Effect = Union[Send, Close, WriteLease, Log]


class Rules(NamedTuple):
    """What the job's spec says about the group. Times in seconds."""

    uid: str
    replicas: int
    processes: int
    attempt_floor: int = 1
    max_restarts: int = 10
    window: float = 3600.0
    rendezvous_timeout: float = 0.0
    """0: none. A cluster may have no room for a pod for as long as it likes; the job's own deadline bounds that."""
    job: str = "pod"
    """Pods are called <job>-<ordinal>."""
    stop_grace: float = names.STOP_GRACE_SECONDS
    """SIGTERM to SIGKILL of the workers of a failed group."""


class Peer:
    """A connected agent, as it last described itself."""

    def __init__(self, conn: int, hello: Message, now: Now) -> None:
        self.conn = conn
        self.ordinal: int = hello["ordinal"]
        self.incarnation: str = hello["incarnation"]
        self.pod: str = hello["pod"]
        self.node: str = hello["node"]
        self.address: str = hello["address"]
        self.port: int = hello["port"]
        self.state: str = hello["state"]
        self.attempt: int = hello["attempt"]
        self.leaving = False
        self.heard = now.mono
        self.told = False  # it was sent the outcome
