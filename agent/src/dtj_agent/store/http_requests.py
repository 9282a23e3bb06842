"""The requests of Horovod's rendezvous: GET, PUT and DELETE of `/scope/key` by HTTP/1.1. Pure.

Matches the server of Horovod 0.28 (`horovod/runner/http/http_server.py`): a key that is not there is 404, and a
rank removes its own key when all ranks of its scope have read it, so a later `hvd.init()` finds no old address.
"""

from __future__ import annotations

from typing import Dict, Generator, List, NamedTuple

METHODS = (b"GET", b"PUT", b"DELETE")
FIRST_BYTES = frozenset(method[0] for method in METHODS)
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 8 * 1024 * 1024  # an address of gloo has less than 1 KiB
END_OF_HEAD = b"\r\n\r\n"
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class BadRequest(Exception):
    """A client sent bytes that no HTTP client of a rendezvous sends; its connection must be closed."""


class Head(NamedTuple):
    """The request line of a request, and the one header that counts."""

    method: bytes
    path: bytes
    length: int
    """Bytes of the body."""


def converse(first: bytes, values: Dict[bytes, bytes], out: bytearray) -> Generator[int, bytes, None]:
    """Parses the requests of one connection, and writes the answers to `out`.

    Args:
        first: the byte that has been read of the first request.
        values: what the ranks have put, by path.

    Raises:
        BadRequest: The bytes are no such request.
    """
    data = first
    while True:
        while not data.endswith(END_OF_HEAD):
            if len(data) > MAX_HEAD_BYTES:
                raise BadRequest("a request line and headers of more than %d bytes" % MAX_HEAD_BYTES)
            data += yield 1
        head = parse(data)
        body = (yield head.length) if head.length else b""
        out += answer(head, body, values)
        data = b""


def parse(data: bytes) -> Head:
    """Returns the head of a request. Raises BadRequest."""
    lines = data[: -len(END_OF_HEAD)].split(b"\r\n")
    method, _, rest = lines[0].partition(b" ")
    path, _, version = rest.partition(b" ")
    if method not in METHODS or not path.startswith(b"/") or not version.startswith(b"HTTP/"):
        raise BadRequest("not a request of Horovod's rendezvous")
    length = _content_length(lines[1:])
    if not 0 <= length <= MAX_BODY_BYTES:
        raise BadRequest("a body of %d bytes" % length)
    return Head(method, path, length)


def answer(head: Head, body: bytes, values: Dict[bytes, bytes]) -> bytes:
    """Carries out one request. Returns the response."""
    if head.method == b"GET":
        found = values.get(head.path)
        return MISSING if found is None else _found(found)
    if head.method == b"PUT":
        values[head.path] = body
    else:
        values.pop(head.path, None)
    return _found(b"")


def _found(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _content_length(headers: List[bytes]) -> int:
    for header in headers:
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-length":
            try:
                return int(value)
            except ValueError:
                raise BadRequest("a Content-Length that is no number") from None
    return 0
