"""The memory of an agent, which shares its pod's memory limit with the training."""

from __future__ import annotations

import http.client
import re
import sys
from pathlib import Path

import pytest

from dtj_agent.build import build
from tests.lib.pythons import interpreter
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, running, token

LIMIT_KIB = 20 * 1024
# The load of a busy hour: 100 thousand reports, 20 MB of log lines. The worker writes a file when
# it has sent all of it.
BUSY = """
import json, os, socket, sys, time
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.connect(os.environ["DTJ_AGENT_SOCKET"])
rank, attempt = int(os.environ["RANK"]), int(os.environ["DTJ_ATTEMPT"])
metrics = {"metric-%d" % i: 1.5 * i for i in range(32)}
for step in range(1, 20001):
    report = dict(rank=rank, attempt=attempt, step=step, loss=1.0 / step, metrics=metrics)
    if step % 100 == 0:
        report["checkpoint"] = {"step": step, "path": "/checkpoints/step-%08d" % step, "time": time.time()}
        report["event"] = {"type": "Normal", "reason": "Saved", "message": "m" * 400}
    sock.send(json.dumps(report).encode())
    print("x" * 500)
open(os.path.join(os.environ["PLAN"], "sent-%d" % rank), "w").close()
time.sleep(600)
"""


def resident_kib(pid: int) -> tuple[int, int]:
    """Returns the resident memory now, and at its highest."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]), int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def test_agent_stays_within_20_mb_in_a_busy_hour(tmp_path: Path) -> None:
    """The zipapp, as in a pod, gets the reports, log lines and status calls of an hour as fast as possible."""
    build(str(tmp_path / "agent.pyz"))
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    group = Group(tmp_path, 2, [sys.executable, str(script)], DTJ_CHECKPOINT_DIR=str(tmp_path / "volume"))
    group.program = [sys.executable, str(tmp_path / "agent.pyz")]
    try:
        group.start()
        wait_until(
            "both ranks to send", lambda: all((group.plan / f"sent-{rank}").exists() for rank in range(2)), timeout=150
        )
        connection = http.client.HTTPConnection("127.0.0.1", group.ports[0], timeout=60)
        for _ in range(1000):
            connection.request("GET", "/status", headers={"Authorization": token()})
            connection.getresponse().read()
        for ordinal, agent in group.agents.items():
            now, highest = resident_kib(agent.pid)
            print(f"agent {ordinal}: RSS {now / 1024:.1f} MiB, at its highest {highest / 1024:.1f} MiB")
            assert highest <= LIMIT_KIB
    finally:
        group.close()


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_agent_runs_a_job_under_every_installed_python(tmp_path: Path, version: str) -> None:
    """A user's image may have any Python from 3.9 on. test_build checks the versions that this machine lacks."""
    python = interpreter(version)
    if python is None:
        return  # nothing to run: test_build parses the sources as 3.9 in any case
    build(str(tmp_path / "agent.pyz"))
    group = Group(tmp_path, 2, [python, "-c", "import os; print('rank', os.environ['RANK'])"])
    group.program = [python, str(tmp_path / "agent.pyz")]
    try:
        group.start()
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0], group.logs()
        assert "[rank 0] rank 0" in group.log(0)
    finally:
        group.close()
    with running(
        tmp_path / "again", 1, [python, "-c", "raise SystemExit(93)"], program=[python, str(tmp_path / "agent.pyz")]
    ) as single:
        assert single.wait_exit(0) == 1
        assert single.outcome()["reason"] == "NoRestartExitCode"
