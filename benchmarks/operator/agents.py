"""Agents of thousands of jobs in one process: they speak the /status protocol, and advance a step each second.

    python -m benchmarks.operator.agents    reads commands from standard input, one JSON object a line

`{"job": UID, "address": ADDRESS}` adds a job whose group runs and whose pods have this loopback address;
`{"fail": UID}` lets a worker fail and the group restart. With `--still`, no group makes steps.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.parse
from typing import Any

from benchmarks.operator.helper import READY, Helper
from dtj_agent.pages.status_waits import until_whole_second
from dtj_contract import names
from dtj_contract.agent_status import RENDEZVOUS, RUNNING
from dtj_contract.operator_message import HEADER
from dtj_contract.status_token import CLOCK_HEADER, bearer_is_valid
from dtj_core.plan.agent_keys import agent_key
from dtj_core.plan.model import Settings
from dtj_operator.following.descriptors import make_room
from tests.integration.controlplane.support import MASTER_KEY

SILENT = "127.0.64.2"
"""An agent here accepts no connection, and answers nothing."""
TOTAL = 1_000_000
STILL = "--still"


def address_of(name: str) -> str:
    """Returns the address of all pods of a job, by the name of the job or of a pod: b00012 and b00012-1."""
    number = int(name[1:6]) + 1 if name[0] == "b" and name[1:6].isdecimal() else 0
    return f"127.65.{number // 250}.{number % 250 + 1}"


class Job:
    """A group that runs since `began`: its step is the number of seconds since then, or 0 with `--still`."""

    def __init__(self, uid: str, address: str) -> None:
        self.uid, self.address, self.began = uid, address, time.time()
        self.key = agent_key(uid, Settings(agent_image="", master_key=MASTER_KEY)).encode()
        self.attempt, self.phase = 1, RUNNING
        self.failures: list[Any] = []
        self.version = 1
        self.changed = asyncio.Event()

    def page(self) -> bytes:
        now = time.time()
        step = 0 if STILL in sys.argv else int(now - self.began)
        progress = {"step": step, "totalSteps": TOTAL, "time": self.began + step, "loss": 2.5 / (1 + step)}
        member = {"node": "node-1", "address": f"{self.address}:29400", "state": "Running"}
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
    """Answers for all jobs: the address of a connection names its job."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.by_address: dict[str, Job] = {}

    def add(self, uid: str, address: str) -> None:
        self.jobs[uid] = self.by_address[address] = Job(uid, address)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                address, _ = writer.get_extra_info("sockname")
                writer.write(await self._answer(self.by_address.get(address), head.decode()))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, job: Job | None, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        shown, message = headers.get("authorization", ""), headers.get(HEADER.lower(), "")
        if job is None or not bearer_is_valid(job.key, shown, time.time(), message):
            clock = f"{CLOCK_HEADER}: {time.time():.0f}\r\n".encode()
            return b"HTTP/1.1 401 Unauthorized\r\n" + clock + b"Content-Length: 0\r\n\r\n"
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(first.split()[1]).query))
        if query.get("after") == f"{job.version:08x}":
            try:
                async with asyncio.timeout(until_whole_second(float(query.get("wait", "0")), time.time())):
                    await job.changed.wait()
            except TimeoutError:
                pass
        body = job.page()
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    def command(self, line: bytes) -> None:
        given = json.loads(line)
        if "job" in given:
            self.add(given["job"], given["address"])
        else:
            self.jobs[given["fail"]].fail()


async def main() -> None:
    """Serves until standard input ends."""
    make_room()
    server = Server()
    loop = asyncio.get_running_loop()
    await asyncio.start_server(server.serve, "0.0.0.0", names.AGENT_PORT, backlog=4096)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(READY, flush=True)
    while line := await reader.readline():
        server.command(line)


class Agents(Helper):
    """The process of all agents. `still`: their groups make no steps."""

    def __init__(self, *, still: bool = False) -> None:
        super().__init__("benchmarks.operator.agents", *([STILL] if still else []))

    def add(self, job: Any) -> None:
        metadata = job["metadata"]
        self._request({"job": metadata["uid"], "address": address_of(metadata["name"])})

    def fail(self, uid: str) -> None:
        self._request({"fail": uid})

    def _request(self, given: object) -> None:
        self.send(json.dumps(given).encode())


if __name__ == "__main__":
    asyncio.run(main())
