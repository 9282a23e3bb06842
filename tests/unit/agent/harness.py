"""Agents as real processes on loopback, their workers small scripts of the standard library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dtj_contract import names
from dtj_contract.status_token import status_token
from tests.lib.ports import free_port
from tests.lib.waiting import wait_until

KEY = "5e" * 32
# Nothing takes this long, and on a busy machine nothing is known to take less.
PATIENCE = 90.0

# A worker that reports like a trainer. Files in the folder $PLAN control it, so that a test can
# change its behaviour.
WORKER = """
import json, os, signal, socket, sys, time
rank, attempt, plan = int(os.environ["RANK"]), int(os.environ["DTJ_ATTEMPT"]), os.environ["PLAN"]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def report(**what):
    try:
        sock.sendto(json.dumps(dict(what, rank=rank, attempt=attempt)).encode(), os.environ["DTJ_AGENT_SOCKET"])
    except OSError:
        pass
def planned(name):
    return os.path.exists(os.path.join(plan, name))
if planned("handle-sigterm"):
    def end(*_):
        print("saving on SIGTERM", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
if planned("report-on-sigterm"):
    event = {"type": "Warning", "reason": "LastWord", "message": "of %d" % rank}
    signal.signal(signal.SIGTERM, lambda *_: report(event=event))
if planned("ignore-sigterm"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.path.join(plan, "pid-%d" % rank), "w").write(str(os.getpid()))
open(os.path.join(plan, "ran-%d-%d" % (attempt, rank)), "w").write(json.dumps(dict(os.environ)))
report(phase="loading")
saved = os.path.join(plan, "saved")
step = int(open(saved).read()) if os.path.exists(saved) else 0
report(phase="training", resumedStep=step)
while not planned("finish"):
    step += 1
    report(phase="training", step=step, totalSteps=1000, loss=1.0 / step)
    if rank == 0 and planned("save"):
        os.unlink(os.path.join(plan, "save"))
        open(saved + ".new", "w").write(str(step))
        os.replace(saved + ".new", saved)
        report(checkpoint={"step": step, "path": saved, "time": time.time()})
    for name in ("exit-%d" % rank, "raise-%d" % rank):
        if planned(name):
            value = open(os.path.join(plan, name)).read()
            os.unlink(os.path.join(plan, name))
            if name.startswith("exit"):
                sys.exit(int(value))
            raise RuntimeError(value)
    time.sleep(0.01)
print("rank", rank, "is done")
"""


class Group:
    """The agents of one job. `start(i)` starts agent i, also after its exit, as the kubelet would."""

    def __init__(
        self,
        folder: Path,
        replicas: int,
        command: list[str] | None = None,
        program: list[str] | None = None,
        **environ: str,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.replicas = folder, replicas
        self.program = program or [sys.executable, "-m", "dtj_agent"]
        self.plan = folder / "plan"
        self.plan.mkdir()
        (folder / "key").write_text(KEY + "\n")
        (folder / "worker.py").write_text(WORKER)
        self.command = command or [sys.executable, "-u", str(folder / "worker.py")]
        self.environ = environ
        self.ports = free_ports(replicas)
        self.peers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.everyone: list[subprocess.Popen[bytes]] = []

    def start(self, *ordinals: int, **environ: str) -> None:
        for ordinal in ordinals or range(self.replicas):
            settings = {
                names.ENV_JOB: "j",
                names.ENV_JOB_UID: "uid-1",
                names.ENV_REPLICAS: str(self.replicas),
                names.ENV_ORDINAL: str(ordinal),
                names.ENV_PEERS: self.peers,
                names.ENV_LISTEN: f"127.0.0.1:{self.ports[ordinal]}",
                names.ENV_SECRET_FILE: str(self.folder / "key"),
                names.ENV_STATE_DIR: str(self.folder / f"state-{ordinal}"),
                names.ENV_TERMINATION_LOG: str(self.folder / f"termination-{ordinal}"),
                names.ENV_MAX_RESTARTS: "3",
                names.ENV_GRACE_SECONDS: "5",
                # The import of torch would be most of what these tests cost; test_warm.py forks.
                names.ENV_WARM_WORKERS: names.WARM_NEVER,
                "PLAN": str(self.plan),
            }
            with open(self.folder / f"log-{ordinal}", "ab") as log:
                agent = subprocess.Popen(
                    [*self.program, "--", *self.command],
                    env={**os.environ, **settings, **self.environ, **environ},
                    stdout=log,
                    stderr=log,
                )
            self.agents[ordinal] = agent
            self.everyone.append(agent)

    def status(self, ordinal: int | None = None, patience: float = 20.0) -> dict[str, Any]:
        """Returns `/status` of an agent, by default of the one that leads; {} while it does not answer."""
        if ordinal is None:
            # Lazily, and with less patience: a test may have stopped one of them.
            pages = (self.status(one, patience=2.0) for one in self.agents if self.agents[one].poll() is None)
            return next((page for page in pages if page and is_leader(page)), {})
        try:
            body = self.get(ordinal, "/status", token(), patience)
        except OSError:
            return {}
        status: dict[str, Any] = json.loads(body)
        return status

    def get(self, ordinal: int, path: str, authorization: str = "", patience: float = 20.0) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[ordinal]}{path}", headers={"Authorization": authorization}
        )
        with urllib.request.urlopen(request, timeout=patience) as answer:
            data: bytes = answer.read()
            return data

    def tell(self, name: str, text: str = "") -> None:
        """Changes the workers' plan atomically."""
        (self.folder / "new").write_text(text)
        (self.folder / "new").rename(self.plan / name)

    def worker(self, rank: int) -> int:
        """Returns the pid of a rank's present process."""
        return int((self.plan / f"pid-{rank}").read_text())

    def wait_attempt(self, attempt: int, step: int = 1) -> dict[str, Any]:
        """Waits until this attempt has done a step. Returns the status."""

        def there() -> dict[str, Any] | None:
            status = self.status()
            if status.get("phase") != "Running" or status["attempt"] != attempt or not self.stepped(status, step):
                return None
            return status if all(self.ran(attempt, rank) for rank in range(self.replicas)) else None

        deadline = time.monotonic() + PATIENCE
        while True:
            found = there()
            if found is not None:
                return found
            assert time.monotonic() < deadline, f"attempt {attempt} does not run: {self.status()}\n{self.logs()}"
            time.sleep(0.01)

    def stepped(self, status: dict[str, Any], step: int) -> bool:
        last, progress = status["recoveries"][-1:], status["progress"] or {"step": 0, "time": 0.0}
        resumed = not last or (last[0]["resumedStep"] is not None and progress["time"] > last[0]["time"])
        return resumed and progress["step"] >= step

    def ran(self, attempt: int, rank: int) -> dict[str, str] | None:
        """Returns the environment of a rank in an attempt; None if it did not run."""
        path = self.plan / f"ran-{attempt}-{rank}"
        text = path.read_text() if path.exists() else ""
        return json.loads(text) if text.endswith("}") else None

    def wait_exit(self, ordinal: int, seconds: float = PATIENCE) -> int:
        try:
            return self.agents[ordinal].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"agent {ordinal} does not exit\n{self.logs()}") from None

    def outcome(self, ordinal: int = 0) -> dict[str, Any]:
        """Returns the termination message."""
        message: dict[str, Any] = json.loads((self.folder / f"termination-{ordinal}").read_text())
        return message

    def log(self, ordinal: int) -> str:
        return (self.folder / f"log-{ordinal}").read_text()

    def logs(self) -> str:
        return "\n".join(f"--- agent {ordinal}\n{self.log(ordinal)}" for ordinal in self.agents)

    def close(self) -> None:
        for agent in self.everyone:
            if agent.poll() is None:
                agent.kill()
            agent.wait(PATIENCE)


def is_leader(page: dict[str, Any]) -> bool:
    return bool(page["leader"]) and page["leader"]["ordinal"] == page["ordinal"]


def token(key: str = KEY, message: str = "", ahead: float = 0.0) -> str:
    """Returns the value of Authorization of a request now, by a clock that is `ahead` seconds ahead."""
    return "Bearer " + status_token(key.encode(), time.time() + ahead, message)


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def is_alive(pid: int) -> bool:
    """Returns whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def running(
    folder: Path, replicas: int, command: list[str] | None = None, program: list[str] | None = None, **environ: str
) -> Iterator[Group]:
    """Starts a group, and at the end checks that all its processes are gone."""
    group = Group(folder, replicas, command, program, **environ)
    try:
        group.start()
        yield group
    finally:
        group.close()
        pids = [int(path.read_text() or 0) for path in group.plan.glob("pid-*")]
        wait_until("the workers to end with their agents", lambda: not any(is_alive(pid) for pid in pids if pid))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
