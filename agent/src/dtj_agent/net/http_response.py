"""HTTP/1.1 for an agent's pages, on the port of the agents' protocol: GET only, one request per connection. Pure."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Optional

from dtj_contract import operator_message

METHOD = b"GET "
_OPERATOR = operator_message.HEADER.lower()
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


class Request(NamedTuple):
    path: str
    authorization: str
    operator: str = ""
    """The operator's message (dtj_contract.operator_message)."""


Page = Callable[[Request], Response]


def text(status: int, body: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", body.encode())


def parse(head: bytes) -> Optional[Request]:
    """Returns the request whose head is `head`; None if it is no GET request."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or parts[0] != "GET" or not parts[2].startswith("HTTP/1."):
        return None
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return Request(parts[1].partition("?")[0], headers.get("authorization", ""), headers.get(_OPERATOR, ""))


def respond(head: bytes, pages: Mapping[str, Page]) -> bytes:
    """Returns the bytes that answer a request."""
    request = parse(head)
    if request is None:
        response = text(400, "only GET with HTTP/1.1\n")
    elif request.path in pages:
        response = pages[request.path](request)
    else:
        response = text(404, "pages: %s\n" % " ".join(sorted(pages)))
    lines = [
        "HTTP/1.1 %d %s" % (response.status, _REASONS[response.status]),
        "Content-Type: " + response.content_type,
        "Content-Length: %d" % len(response.body),
        "Connection: close",
    ]
    if response.status == 401:
        lines.append("WWW-Authenticate: Bearer")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + response.body
