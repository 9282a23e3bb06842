"""The agents of a local run on loopback: the ports that they listen on, and their /status."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from types import TracebackType
from typing import Any

from dtj_contract.operator_message import HEADER
from dtj_contract.status_token import status_token

LOOPBACK = "127.0.0.1"
STATUS_SECONDS = 2.0


class Ports:
    """Holds one free loopback port per pod.

    A port that was only looked up could be taken before the agent binds it, so each port stays
    bound here, not listening, with SO_REUSEADDR: the kernel then gives it to no process that
    requests any free port, and lets the agent, which also binds with SO_REUSEADDR, listen on it
    repeatedly. While no agent listens, a connection is refused at once.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def at(self, ordinal: int) -> int:
        """Returns the port of the pod with this ordinal; constant for the whole run."""
        while len(self._held) <= ordinal:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((LOOPBACK, 0))
            self._held.append(held)
        port: int = self._held[ordinal].getsockname()[1]
        return port

    def __enter__(self) -> Ports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for held in self._held:
            held.close()


async def agent_status(port: int, key: str, message: str) -> dict[str, Any] | None:
    """Returns the `/status` of the agent on this loopback port, or None without an answer.

    `message` is handed over with the request, as the operator's is.
    docs/reference/contract.md describes the answer.
    """
    return await asyncio.to_thread(_get_status, port, key, message)


def _get_status(port: int, key: str, message: str) -> dict[str, Any] | None:
    token = status_token(key.encode(), time.time(), message)
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=STATUS_SECONDS)
    try:
        connection.request("GET", "/status", headers={"Authorization": f"Bearer {token}", HEADER: message})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            return None
        answer = json.loads(body)
    except (OSError, http.client.HTTPException, json.JSONDecodeError):
        # The agent is starting, stopping, or was killed between two bytes; the caller polls again.
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else None
