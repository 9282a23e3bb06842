"""Groups that hang, as real processes: stopped, spinning and sleeping ranks are named, and the group trains again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import Group, running

# Reports like a trainer, until the plan makes one rank hang.
SCRIPT = """
import json, os, socket, sys, time
rank, attempt, plan = int(os.environ["RANK"]), int(os.environ["DTJ_ATTEMPT"]), os.environ["PLAN"]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def report(**what):
    sock.sendto(json.dumps(dict(what, rank=rank, attempt=attempt)).encode(), os.environ["DTJ_AGENT_SOCKET"])
def planned(name):
    return os.path.exists(os.path.join(plan, name))
open(os.path.join(plan, "pid-%d" % rank), "w").write(str(os.getpid()))
open(os.path.join(plan, "ran-%d-%d" % (attempt, rank)), "w").write(json.dumps(dict(os.environ)))
silent = planned("silent")
if not silent:
    report(phase="loading")
    report(phase="training", resumedStep=0)
step = 0
while not planned("finish"):
    time.sleep(0.02)
    # A collective: nobody passes while one rank hangs.
    if attempt == 1 and planned("hang"):
        if rank != int(open(os.path.join(plan, "hang")).read()):
            time.sleep(1e9)
        time.sleep(0.1)  # the others are in their last step
        if planned("spin"):
            while True:
                pass
        time.sleep(1e9)
    step += 1
    if not silent:
        report(phase="training", step=step, totalSteps=100000)
"""


def start(folder: Path, replicas: int = 2, **environ: str) -> Any:
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return running(folder, replicas, [sys.executable, "-u", str(script)], **environ)


def failed(group: Group) -> dict[str, Any]:
    """Waits for the first failure and returns it."""
    found = wait_until("a failure", lambda: group.status().get("failures"), detail=group.logs)
    failure: dict[str, Any] = found[0]
    return failure


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_group_with_a_stopped_rank_names_it_and_trains_again(tmp_path: Path) -> None:
    with start(tmp_path / "g", **{names.ENV_PROCESSES_PER_POD: "2"}) as group:
        group.wait_attempt(1)
        os.kill(group.worker(3), signal.SIGSTOP)
        failure = failed(group)
        assert (failure["reason"], failure["rank"], failure["pod"]) == ("WorkerHung", 3, "j-1")
        assert "has been stopped by a signal" in failure["message"]
        status = group.wait_attempt(2)
        assert status["restarts"] == {"inPlace": 1, "pod": 0, "counted": 1}
        assert status["recoveries"][0]["reason"] == "WorkerHung"


@pytest.mark.parametrize("kind", ["spin", "sleep"])
def test_group_without_a_step_for_longer_than_the_limit_restarts(tmp_path: Path, kind: str) -> None:
    with start(tmp_path / "g", **{names.ENV_HANG_MIN_SECONDS: "3"}) as group:
        group.tell(kind)
        group.wait_attempt(1, step=20)
        group.tell("hang", "1")
        failure = failed(group)
        assert failure["reason"] == "WorkerHung"
        assert "no step for" in failure["message"] or "no rank has made a step" in failure["message"]
        assert group.wait_attempt(2)["restarts"]["counted"] == 1


def test_group_that_never_reports_restarts_after_its_progress_deadline(tmp_path: Path) -> None:
    with start(tmp_path / "g", **{names.ENV_PROGRESS_DEADLINE: "7"}) as group:
        group.tell("silent")
        group.tell("hang", "0")
        failure = failed(group)
        assert (failure["reason"], failure["attempt"]) == ("WorkerHung", 1)
        assert "has shown no sign of life" in failure["message"]
        wait_until("attempt 2", lambda: group.status().get("attempt") == 2, detail=group.logs)


def test_hang_with_policy_report_is_an_event_and_restarts_nothing(tmp_path: Path) -> None:
    with start(tmp_path / "g", **{names.ENV_HANG_POLICY: "Report"}) as group:
        group.wait_attempt(1)
        os.kill(group.worker(1), signal.SIGSTOP)

        def hung() -> list[dict[str, Any]]:
            return [event for event in group.status().get("events", []) if event["reason"] == "WorkerHung"]

        event = wait_until("an event", hung, detail=group.logs)[0]
        assert event["type"] == "Warning"
        assert event["message"].startswith("rank 1 (j-1")
        os.kill(group.worker(1), signal.SIGCONT)
        before = group.status()["progress"]["step"]
        wait_until("a later step", lambda: group.status()["progress"]["step"] > before + 5)
        status = group.status()
        assert (status["attempt"], status["phase"], status["failures"]) == (1, "Running", [])
        assert len(hung()) == 1
