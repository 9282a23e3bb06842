"""A server that answers W&B's client as far as one run needs it, because W&B's own server can't be had.

The server keeps by a run's id what the client sends. A second `wandb.init` with that id resumes the run.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef" * 2 + "89abcdef"
"""As long as W&B's keys are, which the client checks."""
RUN = re.compile(r"/files/[^/]+/[^/]+/([^/]+)/file_stream")


class WandbServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rows: dict[str, dict[int, dict[str, Any]]] = {}
        """The rows of each run by W&B's own number, which counts the calls of `log`."""
        self.keys: set[str] = set()
        """API keys that came with requests."""
        self.stopped = False
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def steps(self, run: str) -> list[int]:
        return [row["train_step"] for _, row in sorted(self.rows[run].items())]

    def stop(self) -> None:
        """Closes the port, and each open connection at its next request."""
        self.stopped = True
        self.shutdown()
        self.server_close()

    def query(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Returns the data of a GraphQL operation. The client needs no answer to those that are not here."""
        project = {"id": "p", "name": "digits", "entity": {"id": "e", "name": "team"}}
        run = variables.get("name") or ""
        rows = [json.dumps(row) for _, row in sorted(self.rows.get(run, {}).items())]
        bucket = {"id": "r", "name": run, "displayName": run, "config": "{}", "historyLineCount": len(rows)}
        if name == "Viewer":
            return {"viewer": {"id": "u", "entity": "team", "username": "u", "flags": "{}", "teams": {"edges": []}}}
        if name == "UpsertBucket":
            self.rows.setdefault(run, {})
            return {"upsertBucket": {"bucket": bucket | {"project": project}, "inserted": not rows}}
        if name == "RunResumeStatus":
            resumed = {
                "summaryMetrics": "{}", "logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]", "tags": [],
                "historyTail": json.dumps(rows[-1:]), "wandbConfig": '{"t": 1}',
            }  # fmt: skip
            return {"model": project | {"bucket": bucket | resumed if run in self.rows else None}}
        if name == "CreateRunFiles":
            files = [{"name": each, "uploadUrl": f"{self.url}/upload"} for each in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        return {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def log_message(self, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.server.stopped:
            self.close_connection = True
            return
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            self.server.keys.add(base64.b64decode(given).decode().partition(":")[2])
        if self.path == "/graphql":
            asked = json.loads(body)
            name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            self.answer({"data": self.server.query(name[1] if name else "", asked.get("variables") or {})})
            return
        if run := RUN.fullmatch(self.path):
            history = (json.loads(body).get("files") or {}).get("wandb-history.jsonl") or {"content": []}
            for number, line in enumerate(history["content"], history.get("offset", 0)):
                self.server.rows.setdefault(run[1], {})[number] = json.loads(line)
        self.answer({})

    def answer(self, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
