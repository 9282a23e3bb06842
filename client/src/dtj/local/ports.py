"""Loopback ports for the agents that nobody else on this machine can be given while the run lasts."""

from __future__ import annotations

import socket
from types import TracebackType


class Ports:
    """Holds one free loopback port per pod.

    A port that was only looked up can be taken before the agent binds it. So each stays bound here, not listening, with
    SO_REUSEADDR: the kernel then gives it to nobody who asks for any free port, and lets the agent, which binds with
    SO_REUSEADDR too, listen on it, again and again. While no agent listens, a connection is refused at once.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def at(self, ordinal: int) -> int:
        """The port of the pod with this ordinal; the same for the whole run."""
        while len(self._held) <= ordinal:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            self._held.append(held)
        port: int = self._held[ordinal].getsockname()[1]
        return port

    def __enter__(self) -> Ports:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for held in self._held:
            held.close()
