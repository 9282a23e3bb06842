"""HTTP/1.1 for an agent's pages, on the port of the agents' protocol: GET only. Pure.

A connection ends with its first response, unless the request has a parameter `wait`: its sender listens, and the
connection is kept for the next request.
"""

from __future__ import annotations

from typing import Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Union

from dtj_contract import operator_message
from dtj_contract.agent_status import MAX_WAIT_SECONDS
from dtj_contract.status_token import CLOCK_HEADER

MAX_VERSION = 64
"""Characters of a page's version that are read."""
METHOD = b"GET "
_OPERATOR = operator_message.HEADER.lower()
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}
_REASONS[413] = "Content Too Large"


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes
    headers: Tuple[str, ...] = ()


class Request(NamedTuple):
    path: str
    authorization: str
    operator: str = ""
    """The operator's message (dtj_contract.operator_message)."""
    after: str = ""
    """Version of the page that the sender has; empty: none."""
    wait: Optional[float] = None
    """Seconds that the sender waits for another version; None: the sender asks once, and does not listen."""
    closes: bool = False
    """Whether the sender ends the connection with this request."""

    @property
    def is_kept(self) -> bool:
        """Whether the connection stays open for another request."""
        return self.wait is not None and not self.closes


class Deferred:
    """A response that comes later: the page calls `deliver` once, unless the connection has called `cancel`."""

    def __init__(self) -> None:
        self.deliver: Callable[[Response], None] = lambda response: None
        self.cancel: Callable[[], None] = lambda: None


Page = Callable[[Request], Union[Response, Deferred]]


def text(status: int, body: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", body.encode())


def unauthorized(now: float) -> Response:
    """Returns the answer to a request without a valid token, with the clock that tokens are compared with."""
    help_text = 'Authorization: Bearer T.<hex HMAC-SHA256(key, "status\\nT\\n" + DTJ-Operator)>, T in Unix seconds\n'
    headers = ("WWW-Authenticate: Bearer", "%s: %d" % (CLOCK_HEADER, now))
    return text(401, help_text)._replace(headers=headers)


def parse(head: bytes) -> Optional[Request]:
    """Returns the request whose head is `head`; None if it is no GET request."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or parts[0] != "GET" or not parts[2].startswith("HTTP/1."):
        return None
    headers: Dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    path, _, query = parts[1].partition("?")
    parameters = dict(pair.partition("=")[::2] for pair in query.split("&"))
    closes = parts[2] != "HTTP/1.1" or headers.get("connection", "").lower() == "close"
    return Request(
        path,
        headers.get("authorization", ""),
        headers.get(_OPERATOR, ""),
        parameters.get("after", "")[:MAX_VERSION],
        _seconds(parameters.get("wait")),
        closes,
    )


def _seconds(text: Optional[str]) -> Optional[float]:
    """Returns the seconds that a client waits, within bounds; None if it names none."""
    if text is None or not text.isdecimal():
        return None
    return float(min(int(text[:9]), MAX_WAIT_SECONDS))


def answer(request: Optional[Request], pages: Mapping[str, Page]) -> Union[Response, Deferred]:
    """Returns the response to a request, now or later. None: what was sent is no GET request."""
    if request is None:
        return text(400, "only GET with HTTP/1.1\n")
    if request.path in pages:
        return pages[request.path](request)
    return text(404, "pages: %s\n" % " ".join(sorted(pages)))


def render(response: Response, *, keep: bool = False) -> bytes:
    """Returns the bytes of a response. `keep`: another request may follow on the connection."""
    lines = [
        "HTTP/1.1 %d %s" % (response.status, _REASONS[response.status]),
        "Content-Type: " + response.content_type,
        "Content-Length: %d" % len(response.body),
        "Connection: " + ("keep-alive" if keep else "close"),
    ]
    lines += response.headers
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + response.body
