"""An authenticated connection between two agents: messages both ways, closed after silence."""

from __future__ import annotations

from typing import Callable

from dtj_agent.errors import AgentError
from dtj_agent.group.messages import Message, check
from dtj_agent.net.auth import Session
from dtj_agent.net.loop import Loop
from dtj_agent.net.stream import Stream
from dtj_agent.settings import Address
from dtj_contract import names

_serial = 0


class Link:
    """Calls `on_open` once both sides are authenticated, `on_message` with each message, and
    exactly once `on_close(reason, seconds of silence)`.
    """

    def __init__(self, loop: Loop, stream: Stream, secret: bytes, client: bool) -> None:
        global _serial
        _serial += 1
        self.number = _serial
        """Unique in this process; the coordinator knows the connection by this number."""
        self.on_open: Callable[[], None] = lambda: None
        self.on_message: Callable[[Message], None] = lambda message: None
        self.on_close: Callable[[str, float], None] = lambda reason, silence: None
        self.is_open = False
        self._loop = loop
        self._stream = stream
        self._session = Session(secret, client)
        self._heard = loop.clock()
        self.peer_address: Address = stream.peer
        stream.on_data = self._data
        stream.on_close = self._closed
        if client:
            stream.on_connect = lambda: stream.write(self._session.greeting())
        self._deadline = loop.later(names.HANDSHAKE_SECONDS, self._on_deadline)

    def send(self, message: Message) -> None:
        if self.is_open:
            self._stream.write(self._session.seal(message))

    def send_encoded(self, payload: bytes) -> None:
        """Sends a message that is encoded already. Raises WireError if it is too long."""
        if self.is_open:
            self._stream.write(self._session.seal_encoded(payload))

    def close(self, reason: str = "") -> None:
        self._stream.close(reason)

    def close_when_written(self) -> None:
        self._stream.close_when_written()

    @property
    def has_greeted(self) -> bool:
        """Whether the other side, which dialled, has sent its whole greeting."""
        return self._session.has_greeted

    @property
    def pending(self) -> int:
        return self._stream.pending

    def _data(self, data: bytes) -> None:
        self._heard = self._loop.clock()
        try:
            messages = self._session.feed(data)
            reply = self._session.take_reply()
            if reply:
                self._stream.write(reply)
            if self._session.proven and not self.is_open:
                self.is_open = True
                self._deadline.cancel()
                self._deadline = self._loop.later(names.PEER_DEAD_SECONDS, self._on_deadline)
                self.on_open()
            for message in messages:
                if not self._stream.closed:
                    self.on_message(check(message))
        except AgentError as error:  # AuthError or WireError
            self._stream.close(str(error))

    def _on_deadline(self) -> None:
        """Closes the link if the handshake, or the next heartbeat, has not come in time."""
        silence = self._loop.clock() - self._heard
        if not self.is_open:
            self._stream.close("the handshake timed out after %.0f s" % names.HANDSHAKE_SECONDS)
        elif silence >= names.PEER_DEAD_SECONDS:
            self._stream.close("no heartbeat for %.1f s" % silence)
        else:
            self._deadline = self._loop.later(names.PEER_DEAD_SECONDS - silence, self._on_deadline)

    def _closed(self, reason: str) -> None:
        self._deadline.cancel()
        self.is_open = False
        self.on_close(reason, self._loop.clock() - self._heard)
