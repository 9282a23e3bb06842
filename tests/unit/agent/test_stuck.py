"""A worker that SIGKILL can't end, because it sleeps in a volume that hangs: its pod is given up, not the group."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.harness import Group, kill
from tests.unit.agent.hung_volume import hung_volume, possible

# An agent that is less patient than a real one; nothing else of it differs.
IMPATIENT = "from dtj_contract import names; names.STUCK_SECONDS = 0.5; from dtj_agent.main import main; main()"
# Rank 1 of the first attempt reads the volume, and never returns from the read.
READER = """
import os, sys
sys.path.insert(0, os.environ["PLAN"] + "/..")
def read():
    if os.environ["RANK"] == "1" and os.environ["DTJ_ATTEMPT"] == "1":
        open(os.environ["VOLUME"] + "/data").read()
        open(os.environ["PLAN"] + "/woke", "w").close()
import threading
threading.Thread(target=read).start()
exec(open(os.environ["PLAN"] + "/../worker.py").read())
"""

needs_root = pytest.mark.skipif(not possible(), reason="mounting a file system needs root and /dev/fuse")


def state_of(pid: int) -> str:
    """Returns the state of a process as ps shows it; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def stuck_group(tmp_path: Path) -> Group:
    """Starts two agents and waits for the first attempt, in which rank 1 sleeps in the volume."""
    (tmp_path / "reader.py").write_text(READER)
    command = [sys.executable, "-u", str(tmp_path / "reader.py")]
    program = [sys.executable, "-c", IMPATIENT]
    group = Group(tmp_path, 2, command, program, VOLUME=str(tmp_path / "volume"))
    group.start(0)
    wait_until("agent 0 to lead", lambda: "coordinates the group" in group.log(0))
    group.start(1)
    group.wait_attempt(1)
    return group


@needs_root
def test_group_resumes_in_a_new_pod_while_the_old_worker_is_stuck(tmp_path: Path) -> None:
    with hung_volume(tmp_path / "volume"):
        group = stuck_group(tmp_path)
        try:
            pid = group.worker(1)
            kill(group.worker(0))
            status = wait_until(
                "the stuck worker in the status",
                lambda: (s := group.status()).get("phaseReason") == "WorkerStuck" and s,
                detail=group.logs,
            )
            assert state_of(pid) in "DZ"
            assert [t for t in os.listdir(f"/proc/{pid}/task") if "D" in state_of(int(t))], "it sleeps uninterruptibly"
            assert (status["phase"], status["waitingFor"]) == ("Rendezvous", [1])
            assert [member["state"] for member in status["members"]] == ["idle", names.MEMBER_STUCK]
            failure = status["failures"][-1]
            assert (failure["reason"], failure["pod"]) == ("WorkerStuck", "j-1")
            assert f"processes {pid} do not die of SIGKILL" in failure["message"]

            group.agents[1].send_signal(signal.SIGTERM)  # the operator deletes the pod
            assert group.wait_exit(1) == names.EXIT_TERMINATED
            group.start(1, DTJ_STATE_DIR=str(tmp_path / "new-pod"))
            group.wait_attempt(2)
            assert state_of(pid), "the old one is still there"
            (recovery,) = group.status()["recoveries"]
            assert (recovery["kind"], recovery["reason"], recovery["counted"]) == ("Pod", "WorkerStuck", True)
        finally:
            group.close()
    wait_until("the volume to let go", lambda: state_of(pid) in ("", "Z"))
    assert not (group.plan / "woke").exists(), "SIGKILL came before any further instruction"


@needs_root
def test_stuck_worker_that_is_released_in_time_costs_no_pod(tmp_path: Path) -> None:
    with hung_volume(tmp_path / "volume") as volume:
        group = stuck_group(tmp_path)
        try:
            kill(group.worker(0))
            wait_until(
                "the stuck worker in the status",
                lambda: group.status().get("phaseReason") == "WorkerStuck",
                detail=group.logs,
            )
            volume.kill()
            group.wait_attempt(2)
            assert group.agents[1].poll() is None
        finally:
            group.close()


def test_new_pod_replaces_a_stuck_pod_that_still_sends_heartbeats() -> None:
    """The old pod's node can't end it either, and its agent continues to send heartbeats."""
    harness = CoordinatorHarness(2).running()
    harness.fail(0)
    harness.stopped(0)
    harness.receive(1, "stuck", attempt=1, what="processes 7 do not die")
    assert harness.coordinator.phase == "Rendezvous"
    harness.join(1, generation=1, incarnation="new")
    assert harness.closed == [1]
    assert [ordinal for ordinal, message in harness.messages("start") if message["attempt"] == 2] == [0, 1]


def test_stuck_worker_is_counted_once_though_a_worker_failed_too() -> None:
    harness = CoordinatorHarness(2, max_restarts=0).running()
    harness.fail(0)
    harness.stopped(0)
    harness.receive(1, "stuck", attempt=1, what="processes 7 do not die")
    final = harness.coordinator.outcome
    assert final is not None
    assert (final["reason"], final["failure"]["reason"]) == ("RestartBudgetSpent", "WorkerStuck")
    assert "processes 7 do not die" in final["message"]
    assert [failure["reason"] for failure in harness.coordinator.history.failures] == ["WorkerStuck"]


def test_agent_that_never_reports_its_workers_end_is_waited_for_a_bounded_time() -> None:
    harness = CoordinatorHarness(2).running()
    harness.fail(0)
    harness.stopped(0)
    harness.wait(2 * names.STUCK_SECONDS)
    assert harness.coordinator.phase == "Stopping"
    harness.wait(1)
    assert (harness.coordinator.phase, harness.coordinator.waiting_for) == ("Rendezvous", [1])


def test_stuck_member_takes_the_outcome_and_stays_to_serve_it() -> None:
    """The container can't exit, so its termination message would never be read."""
    harness = CoordinatorHarness(1, max_restarts=0).running()
    harness.fail(0)
    harness.receive(0, "stuck", attempt=1, what="processes 7 do not die")
    assert [ordinal for ordinal, _ in harness.messages("finish")] == [0]
