"""One HTTP connection to an agent: a request and its response, or a kept connection with one after the other."""

from __future__ import annotations

from typing import Callable, Mapping, Optional

from dtj_agent.net import http_response
from dtj_agent.net.loop import Timer
from dtj_agent.net.stream import Stream
from dtj_contract import names
from dtj_contract.agent_status import KEPT_SECONDS

END = b"\r\n\r\n"


class HttpConnection:
    """Takes over a stream whose first bytes are a whole request. `on_close`: called once, when the stream ends."""

    def __init__(
        self, stream: Stream, pages: Mapping[str, http_response.Page], on_close: Callable[[], None] = lambda: None
    ) -> None:
        self._stream = stream
        self._pages = pages
        self._on_close = on_close
        self._buffer = bytearray()
        self._deferred: Optional[http_response.Deferred] = None
        self._deadline: Optional[Timer] = None
        stream.on_data, stream.on_close = self.received, self._closed

    @property
    def is_listening(self) -> bool:
        """Whether the connection stays open: for a response that comes later, or for another request."""
        return not self._stream.closed and (self._deferred is not None or self._deadline is not None)

    def received(self, data: bytes) -> None:
        """Handles what the other side sent. Requests that come before the response wait for it."""
        self._buffer += data
        self._next()

    def _next(self) -> None:
        if self._deferred is None and END in self._buffer:
            head, _, rest = bytes(self._buffer).partition(END)
            self._buffer = bytearray(rest)
            self._serve(head)
        elif len(self._buffer) > names.MAX_HTTP_BYTES or not self._buffer.startswith(
            http_response.METHOD[: len(self._buffer)]
        ):
            self._stream.close("not a GET request")

    def _serve(self, head: bytes) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        request = http_response.parse(head)
        answer = http_response.answer(request, self._pages)
        is_kept = request is not None and request.is_kept
        if isinstance(answer, http_response.Response):
            self._respond(answer, is_kept)
            return
        self._deferred = answer
        answer.deliver = lambda response: self._respond(response, is_kept)

    def _respond(self, response: http_response.Response, is_kept: bool) -> None:
        self._deferred = None
        is_kept = is_kept and response.status == 200
        self._stream.write(http_response.render(response, keep=is_kept))
        if not is_kept:
            self._stream.close_when_written()
        elif not self._stream.closed:
            self._deadline = self._stream.loop.later(KEPT_SECONDS, lambda: self._stream.close("no other request"))
            if self._buffer:
                self._stream.loop.soon(self._next_if_open)

    def _next_if_open(self) -> None:
        if not self._stream.closed:
            self._next()

    def _closed(self, _reason: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._deferred is not None:
            self._deferred.cancel()
        self._on_close()
