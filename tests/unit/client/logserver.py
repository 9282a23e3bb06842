"""The log endpoint of a kubelet, for the API server: a real HTTPS server on loopback."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from hack.cluster.pki import Authority
from tests.lib.waiting import TIMEOUT

STEP_SECONDS = 30


class LogServer:
    """Serves the lines of `logs[pod]`, each of the form `<RFC 3339 time> <text>`.

    A follower receives new lines until `ended` contains the pod.
    """

    def __init__(self, folder: Path) -> None:
        self.logs: dict[str, list[str]] = {}
        self.queries: list[tuple[str, dict[str, list[str]]]] = []
        self.ended: set[str] = set()
        self.news = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                _, _, _, pod, _ = url.path.split("/")  # /containerLogs/<namespace>/<pod>/<container>
                query = parse_qs(url.query)
                outer.queries.append((pod, query))
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                lines = outer.logs[pod]
                sent = max(0, len(lines) - int(query["tailLines"][0])) if "tailLines" in query else 0
                while True:
                    with outer.news:
                        follow = "follow" in query and pod not in outer.ended
                        if follow and sent == len(lines):
                            outer.news.wait(STEP_SECONDS)
                        new = "".join(line + "\n" for line in lines[sent:]).encode()
                        sent = len(lines)
                    if new:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(new), new))
                        self.wfile.flush()
                    if not follow:
                        break
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                pass

        certificate, key = Authority(folder).serving("node", ["IP:127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.port: int = self._server.server_address[1]

    def write(self, pod: str, line: str) -> None:
        with self.news:
            self.logs.setdefault(pod, []).append(line)
            self.news.notify_all()

    def end(self, pod: str) -> None:
        """Ends the pod's container: nobody follows it any more."""
        with self.news:
            self.ended.add(pod)
            self.news.notify_all()

    def __enter__(self) -> LogServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.logs:
            self.end(pod)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT)
