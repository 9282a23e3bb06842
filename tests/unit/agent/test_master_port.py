"""MASTER_PORT of the next attempt: this pod holds the port that it has reported to the coordinator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dtj_contract import names
from tests.unit.agent.harness import KEY

# An agent reaps every child, so it has a process of its own here. The script plays its coordinator.
PROLOGUE = """
import json, os, signal, sys
from dtj_agent.agent import Agent
from dtj_agent.net.loop import Loop
from dtj_agent.settings import parse

loop = Loop()
agent = Agent(parse(os.environ, sys.argv[1:]), os.environ, loop)
sent = []
agent._link.send = sent.append
def receive(**message):
    agent._do(agent.member.received(message, agent._now()))
def start(attempt, port):
    receive(type="start", attempt=attempt, nodeRank=0, nodes=1, masterAddr="127.0.0.1", masterPort=port, history={},
            leader=0)
def answer(kind):
    while not [each for each in sent if each["type"] == kind]:
        loop.run_once()
    found = [each for each in sent if each["type"] == kind][-1]
    sent.clear()
    return found
"""
STOPPED_WHILE_THEY_END = """
def kill(worker):
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
for attempt in (1, 2, 3):
    start(attempt, agent.member.port)
    first, second = agent.workers._supervisor.pids
    kill(first)
    agent.workers._supervisor.reap()
    # The coordinator's stop comes after the second has ended, and before the loop has seen that.
    kill(second)
    receive(type="stop", attempt=attempt, grace=0.0)
    print("result", json.dumps([answer("stopped")["port"], agent.workers.port]), flush=True)
"""
OTHER_PORT = """
start(1, agent.member.port + 1)
print("result", json.dumps(answer("failed")), flush=True)
"""


def run(
    script: str, folder: Path, worker: tuple[str, ...] = ("-c", "import time; time.sleep(1e9)"), **changes: str
) -> list[Any]:
    """Runs a script with one agent, and returns its results."""
    (folder / "key").write_text(KEY + "\n")
    environ = {
        **os.environ, names.ENV_JOB: "j", names.ENV_JOB_UID: "uid-1", names.ENV_REPLICAS: "1", names.ENV_ORDINAL: "0",
        names.ENV_PROCESSES_PER_POD: "2", names.ENV_PEERS: "127.0.0.1:1", names.ENV_LISTEN: "127.0.0.1:0",
        names.ENV_POD_IP: "127.0.0.1", names.ENV_SECRET_FILE: str(folder / "key"),
        names.ENV_STATE_DIR: str(folder / "state"), names.ENV_TERMINATION_LOG: str(folder / "termination"),
        names.ENV_WARM_WORKERS: names.WARM_NEVER, names.ENV_DIE_WITH_PARENT: str(os.getpid()), **changes,
    }  # fmt: skip
    command = [sys.executable, "-c", f"{PROLOGUE}{script}os._exit(0)\n", sys.executable, *worker]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix("result ") for line in done.stdout.splitlines() if line.startswith("result ")]
    return [json.loads(line) for line in lines]


def test_stop_that_meets_a_dead_worker_keeps_the_reported_port(tmp_path: Path) -> None:
    """Otherwise the ranks of the next attempt wait for a port where nothing listens."""
    rows = run(STOPPED_WHILE_THEY_END, tmp_path)
    assert len(rows) == 3
    for reported, held in rows:
        assert reported == held


def test_attempt_with_a_port_that_is_not_held_fails_at_once(tmp_path: Path) -> None:
    (failed,) = run(OTHER_PORT, tmp_path)
    assert failed["attempt"] == 1
    assert "is not held by this pod" in failed["failures"][0]["logTail"]
