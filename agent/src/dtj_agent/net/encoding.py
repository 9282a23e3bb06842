"""Messages as JSON; what goes to many peers is encoded once. No I/O."""

from __future__ import annotations

import json
from typing import Any

from dtj_agent.group.messages import Message


def encode(message: Any) -> bytes:
    """Returns the message as it is sealed into a line."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


class SharedEncoder:
    """Encodes the coordinator's messages, which nothing changes afterwards.

    One history goes to all members, in one message or in a start for each of them. Its encoding
    costs more than all the rest of a broadcast.
    """

    def __init__(self) -> None:
        self._message: Any = None
        self._payload = b""
        self._history: Any = None
        self._encoded = b""

    def encode(self, message: Message) -> bytes:
        """Returns the same bytes as long as the same object comes again and again."""
        if message is not self._message:
            self._message, self._payload = message, self._encode(message)
        return self._payload

    def _encode(self, message: Message) -> bytes:
        history = message.get("history")
        if not isinstance(history, dict) or len(message) < 2:
            return encode(message)
        if history is not self._history:
            self._history, self._encoded = history, encode(history)
        rest = encode({key: value for key, value in message.items() if key != "history"})
        return rest[:-1] + b',"history":' + self._encoded + b"}"
