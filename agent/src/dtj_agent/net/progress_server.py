"""Takes what the ranks of this pod send by HTTP, on loopback: one request a connection, with the pod's token.

Other containers of the pod share its loopback, and so does the whole node under hostNetwork. Therefore nothing is
trusted before the token, and a client that sends without end is answered at a pace that leaves the agent its time.
"""

from __future__ import annotations

import os
import socket
from _operator import _compare_digest as same  # hmac.compare_digest without hmac
from typing import Callable, Dict, NamedTuple, Optional, Set, Tuple

from dtj_agent.net import http_response
from dtj_agent.net.loop import READ, Loop
from dtj_agent.net.stream import Stream
from dtj_contract import names

HOST = "127.0.0.1"
MAX_HEAD_BYTES = 8 * 1024
MAX_BODY_BYTES = 128 * 1024
"""256 metrics, as many as kubeflow.trainer sends, with names of 100 characters take half of it."""
MAX_OPEN = 32
MAX_PER_SECOND = 64
"""A rank sends once in five seconds, and a pod has 64 ranks at most."""
PAUSE_SECONDS = 0.25
"""Between two looks for room for another connection."""
END = b"\r\n\r\n"
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")

OnBody = Callable[[int, int, bytes], bool]


class _Head(NamedTuple):
    method: str
    path: str
    authorization: str
    length: Optional[int]
    """Bytes of the body; None if the request does not name them."""


class ProgressServer:
    """Calls `on_body(attempt, rank, body)` for each request with the token, which returns whether it was understood.

    Raises OSError if there is no socket, or no file for the token.
    """

    def __init__(self, loop: Loop, folder: str, on_body: OnBody) -> None:
        self._loop = loop
        self._on_body = on_body
        self._token = os.urandom(32).hex()
        self._open: Set[Stream] = set()
        self._second, self._taken = 0.0, 0
        self._closed = False
        self.token_file = os.path.join(os.path.abspath(folder), names.KUBEFLOW_TOKEN_FILE)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.bind((HOST, 0))
            self._socket.listen(MAX_OPEN)
            self._socket.setblocking(False)
            _write_private(self.token_file, self._token)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._watch()

    def environment(self, attempt: int, rank: int, environ: Dict[str, str]) -> Dict[str, str]:
        """Returns the variables by which a rank finds this server; `environ` is its environment without them."""
        found = {
            names.KUBEFLOW_URL: "http://%s:%d/attempts/%d/ranks/%d" % (HOST, self.port, attempt, rank),
            names.KUBEFLOW_TOKEN: self.token_file,
        }
        if any(environ.get(name) for name in PROXIES):  # which would get the token
            for name in ("no_proxy", "NO_PROXY"):
                direct = environ.get(name) or environ.get("no_proxy") or environ.get("NO_PROXY") or ""
                found[name] = direct if direct == "*" else ",".join(part for part in (direct, HOST) if part)
        return found

    def close(self) -> None:
        self._closed = True
        self._loop.unwatch(self._socket)
        self._socket.close()
        for stream in list(self._open):
            stream.close("")
        try:
            os.unlink(self.token_file)
        except OSError:
            pass  # the folder is gone

    # --- connections ------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._closed:
            self._loop.watch(self._socket, READ, self._accept)

    def _accept(self, _events: int) -> None:
        now = self._loop.clock()
        if now - self._second >= 1.0:
            self._second, self._taken = now, 0
        while self._taken < MAX_PER_SECOND and len(self._open) < MAX_OPEN:
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:  # out of file descriptors, or the caller has hung up
                break
            self._taken += 1
            self._add(Stream(self._loop, sock))
        self._loop.unwatch(self._socket)
        self._loop.later(PAUSE_SECONDS, self._watch)

    def _add(self, stream: Stream) -> None:
        self._open.add(stream)
        deadline = self._loop.later(names.HANDSHAKE_SECONDS, lambda: stream.close("no whole request in time"))
        buffer = bytearray()

        def closed(_reason: str) -> None:
            deadline.cancel()
            self._open.discard(stream)

        def data(chunk: bytes) -> None:
            buffer.extend(chunk)
            answer = self._answer(bytes(buffer))
            if answer is not None:
                stream.on_data = lambda more: None
                stream.write(http_response.render(answer))
                stream.close_when_written()

        stream.on_close, stream.on_data = closed, data

    def _answer(self, received: bytes) -> Optional[http_response.Response]:
        """Returns the response; None while the request is not whole."""
        raw, end, body = received.partition(END)
        if not end:
            return http_response.text(400, "the head is too long\n") if len(received) > MAX_HEAD_BYTES else None
        head = _parse(raw)
        if head is None:
            return http_response.text(400, "not HTTP\n")
        if head.method != "POST":
            return http_response.text(405, "only POST\n")
        if not same(head.authorization.encode(), b"Bearer " + self._token.encode()):
            return http_response.text(401, "Authorization: Bearer <the token of %s>\n" % names.KUBEFLOW_TOKEN)
        place = _place(head.path)
        if place is None:
            return http_response.text(404, "write to %s\n" % names.KUBEFLOW_URL)
        if head.length is None or head.length > MAX_BODY_BYTES:
            return http_response.text(413, "a Content-Length of at most %d is required\n" % MAX_BODY_BYTES)
        if len(body) < head.length:
            return None
        if not self._on_body(*place, body[: head.length]):
            return http_response.text(400, 'not {"trainerStatus": {...}}\n')
        return http_response.Response(200, "application/json", b"{}\n")


def _parse(raw: bytes) -> Optional[_Head]:
    lines = raw.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return None
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", "")
    is_number = length.isascii() and length.isdigit() and len(length) < 10
    return _Head(parts[0], parts[1], headers.get("authorization", ""), int(length) if is_number else None)


def _place(path: str) -> Optional[Tuple[int, int]]:
    """Returns attempt and rank of `/attempts/A/ranks/R`."""
    parts = path.split("?")[0].split("/")
    if len(parts) != 5 or (parts[1], parts[3]) != ("attempts", "ranks"):
        return None
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (parts[2], parts[4])):
        return None
    return int(parts[2]), int(parts[4])


def _write_private(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
