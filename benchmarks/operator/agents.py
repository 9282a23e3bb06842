"""Agents of thousands of jobs in one process: they speak the /status protocol, and advance a step each second.

    python -m benchmarks.operator.agents ADDRESS    reads commands from standard input, one JSON object a line

`{"job": UID}` adds a job whose group runs; `{"fail": UID}` lets a worker fail and the group restart.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from types import TracebackType
from typing import Any

from dtj_contract import names
from dtj_contract.agent_status import RENDEZVOUS, RUNNING
from dtj_contract.status_token import status_token
from dtj_core.plan.children import agent_key
from dtj_core.plan.model import Settings
from dtj_operator.following.descriptors import make_room
from tests.integration.controlplane.support import MASTER_KEY

ADDRESS = "127.0.64.1"
SILENT = "127.0.64.2"
"""An agent here accepts no connection, and answers nothing."""
BEGAN = 1_790_000_000.0
TOTAL = 1_000_000


class Job:
    """A group that runs since `began`: its step is the number of seconds since then."""

    def __init__(self, uid: str) -> None:
        self.uid, self.began = uid, time.time()
        self.attempt, self.phase = 1, RUNNING
        self.failures: list[Any] = []
        self.version = 1
        self.changed = asyncio.Event()

    def page(self) -> bytes:
        now = time.time()
        step = int(now - self.began)
        progress = {"step": step, "totalSteps": TOTAL, "time": self.began + step, "loss": 2.5 / (1 + step)}
        member = {"node": "node-1", "address": f"{ADDRESS}:29400", "state": "Running"}
        page = {
            "version": 1,
            "uid": self.uid,
            "ordinal": 0,
            "attempt": self.attempt,
            "phase": self.phase,
            "phaseReason": "WorkerFailed" if self.phase != RUNNING else "",
            "replicas": 2,
            "worldSize": 2,
            "members": [member | {"ordinal": ordinal, "pod": f"pod-{ordinal}"} for ordinal in range(2)],
            "restarts": {"inPlace": self.attempt - 1, "pod": 0, "counted": self.attempt - 1},
            "failures": self.failures,
            "startTime": self.began,
            "productiveSeconds": now - self.began,
            "progress": progress | {"samplesPerSecond": 64.0},
            "statusVersion": f"{self.version:08x}",
        }
        return json.dumps(page).encode()

    def change(self, phase: str) -> None:
        self.phase = phase
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def fail(self) -> None:
        failure = {"rank": 1, "ordinal": 1, "pod": "p", "reason": "WorkerFailed", "message": "exit code 7"}
        self.failures = [failure | {"attempt": self.attempt, "time": time.time()}]
        self.change(RENDEZVOUS)
        asyncio.get_running_loop().call_later(3.0, self._restart)

    def _restart(self) -> None:
        self.attempt += 1
        self.change(RUNNING)


class Server:
    """Answers for all jobs at one address: the token of a request names its job."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.by_token: dict[str, Job] = {}
        self._settings = Settings(agent_image="", master_key=MASTER_KEY)

    def add(self, uid: str) -> None:
        job = self.jobs[uid] = Job(uid)
        self.by_token[status_token(agent_key(uid, self._settings).encode())] = job

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(await self._answer(head.decode()))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        job = self.by_token.get(headers.get("authorization", "").removeprefix("Bearer "))
        if job is None:
            return b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(first.split()[1]).query))
        if query.get("after") == f"{job.version:08x}":
            try:
                async with asyncio.timeout(float(query.get("wait", "0"))):
                    await job.changed.wait()
            except TimeoutError:
                pass
        body = job.page()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def command(self, line: bytes) -> None:
        given = json.loads(line)
        if "job" in given:
            self.add(given["job"])
        else:
            self.jobs[given["fail"]].fail()


async def main(address: str) -> None:
    """Serves until standard input ends."""
    make_room()
    server = Server()
    loop = asyncio.get_running_loop()
    await asyncio.start_server(server.serve, address, names.AGENT_PORT, backlog=4096)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        server.command(line)


class Agents:
    """The process of all agents."""

    def __enter__(self) -> Agents:
        command = [sys.executable, "-m", "benchmarks.operator.agents", ADDRESS]
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(30)

    @property
    def pid(self) -> int:
        return self._process.pid

    def add(self, uid: str) -> None:
        self._send({"job": uid})

    def fail(self, uid: str) -> None:
        self._send({"fail": uid})

    def _send(self, given: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(given).encode() + b"\n")
        self._process.stdin.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
