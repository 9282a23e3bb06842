"""The three GET pages of an agent, on the same port as the agents' protocol. HTTP/1.1, one request a connection."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Optional

METHOD = b"GET "
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


class Request(NamedTuple):
    path: str
    authorization: str


Page = Callable[[Request], Response]


def text(status: int, body: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", body.encode())


def parse(head: bytes) -> Optional[Request]:
    """The head of a request, up to and with the empty line; None if it is not one."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[0] != "GET" or not words[2].startswith("HTTP/1."):
        return None
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return Request(words[1].partition("?")[0], headers.get("authorization", ""))


def respond(head: bytes, pages: Mapping[str, Page]) -> bytes:
    """The whole answer to a request."""
    request = parse(head)
    if request is None:
        answer = text(400, "only GET with HTTP/1.1\n")
    elif request.path in pages:
        answer = pages[request.path](request)
    else:
        answer = text(404, "pages: %s\n" % " ".join(sorted(pages)))
    lines = [
        "HTTP/1.1 %d %s" % (answer.status, _REASONS[answer.status]),
        "Content-Type: " + answer.content_type,
        "Content-Length: %d" % len(answer.body),
        "Connection: close",
    ]
    if answer.status == 401:
        lines.append("WWW-Authenticate: Bearer")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body
