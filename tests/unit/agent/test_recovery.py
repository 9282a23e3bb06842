"""Recoveries, with real processes and real signals."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from dtj_contract import names
from tests.lib.waiting import wait_until
from tests.unit.agent.harness import free_ports, is_alive, kill, running


def test_killed_worker_restarts_the_group_in_place(tmp_path: Path) -> None:
    """No agent is touched; the next attempt has fresh ports, contiguous ranks and is counted."""
    with running(tmp_path, 2) as group:
        before = group.wait_attempt(1)
        agents = [agent.pid for agent in group.agents.values()]
        started = time.monotonic()
        kill(group.worker(1))
        status = group.wait_attempt(2)
        print(f"worker SIGKILL -> next step: {time.monotonic() - started:.3f} s")
        assert [agent.pid for agent in group.agents.values() if agent.poll() is None] == agents
        assert before["restarts"] == {"inPlace": 0, "pod": 0, "counted": 0}
        assert status["restarts"] == {"inPlace": 1, "pod": 0, "counted": 1}
        failure = status["failures"][-1]
        assert (failure["rank"], failure["signal"], failure["exitCode"], failure["reason"]) == (
            1,
            "SIGKILL",
            -9,
            "WorkerFailed",
        )
        recovery = status["recoveries"][-1]
        assert (recovery["kind"], recovery["attempt"], recovery["counted"], recovery["resumedStep"]) == (
            "InPlace",
            2,
            True,
            0,
        )
        assert recovery["lastStep"] == recovery["lostSteps"] > 0
        assert sum(recovery["seconds"].values()) < 20, "no wait of the agents is in it"
        first, second = group.ran(1, 0), group.ran(2, 0)
        assert first is not None
        assert second is not None
        assert first["MASTER_PORT"] != second["MASTER_PORT"]
        group.tell("finish")
        assert [group.wait_exit(0), group.wait_exit(1)] == [0, 0]
        assert group.outcome(0) == group.outcome(1)
        assert group.outcome()["result"] == "Succeeded"
        assert group.outcome()["attempt"] == 2


def test_lost_steps_follow_the_checkpoint_and_a_new_one_refills_the_budget(tmp_path: Path) -> None:
    with running(tmp_path, 2, DTJ_MAX_RESTARTS="1") as group:
        for attempt in (1, 2, 3):
            step = group.wait_attempt(attempt)["progress"]["step"]
            group.tell("save")
            status = wait_until(
                f"the checkpoint of step {step}",
                lambda step=step: (s := group.status()) and (s["checkpoint"] or {}).get("step", 0) >= step and s,
            )
            saved = status["checkpoint"]["step"]
            group.wait_attempt(attempt, saved + 3)
            assert group.status()["productiveSeconds"] > 0
            kill(group.worker(0))
        recovery = group.wait_attempt(4)["recoveries"][-1]
        assert recovery["resumedStep"] == saved
        assert recovery["lostSteps"] == recovery["lastStep"] - saved
        assert group.status()["restarts"]["counted"] == 3


@pytest.mark.parametrize("ordinal", [1, 0], ids=["a member", "the coordinator"])
def test_lost_pod_comes_back_and_the_group_keeps_its_history(tmp_path: Path, ordinal: int) -> None:
    """The pod's disk is gone; the survivors stop at once and wait in place. A lost pod costs no budget."""
    with running(tmp_path, 3) as group:
        group.wait_attempt(1)
        kill(group.worker(2))
        group.wait_attempt(2, step=20)
        workers = [group.worker(rank) for rank in range(3)]
        started = time.monotonic()
        group.agents[ordinal].kill()
        wait_until("the survivors to stop", lambda: not any(is_alive(pid) for pid in workers))
        print(f"agent SIGKILL -> all workers gone: {time.monotonic() - started:.3f} s")
        group.agents[ordinal].wait()
        started = time.monotonic()
        group.start(ordinal, DTJ_STATE_DIR=str(tmp_path / "new-disk"))
        status = group.wait_attempt(3)
        print(f"agent started again -> next step: {time.monotonic() - started:.3f} s")
        assert status["restarts"] == {"inPlace": 1, "pod": 1, "counted": 1}
        assert [failure["reason"] for failure in status["failures"]][:1] == ["WorkerFailed"]
        assert [(r["kind"], r["reason"]) for r in status["recoveries"]] == [
            ("InPlace", "WorkerFailed"),
            ("Pod", "PodLost"),
        ]
        assert status["recoveries"][-1]["lastStep"] > 0


@pytest.mark.parametrize("ordinal", [1, 0], ids=["a member", "the coordinator"])
def test_agent_that_dies_in_a_living_pod_is_counted_as_crashed(tmp_path: Path, ordinal: int) -> None:
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        group.agents[ordinal].kill()
        group.agents[ordinal].wait()
        group.start(ordinal)
        status = group.wait_attempt(2)
        assert status["restarts"] == {"inPlace": 0, "pod": 1, "counted": 1}
        assert [f["reason"] for f in status["failures"]] == ["AgentCrashed"]
        assert status["recoveries"][-1]["reason"] == "AgentCrashed"


def test_agents_whose_nodes_have_restarted_three_times_cost_no_budget(tmp_path: Path) -> None:
    """The fourth time without progress is counted: a training may bring its nodes down."""
    with running(tmp_path, 2) as group:
        for attempt in range(1, 4):
            group.wait_attempt(attempt)
            for agent in group.agents.values():
                agent.kill()
                agent.wait()
            for ordinal in (0, 1):
                file = tmp_path / f"state-{ordinal}" / names.STATE_FILE
                file.write_text(json.dumps(json.loads(file.read_text()) | {"boot": "of an earlier boot"}))
                group.start(ordinal)
        status = group.wait_attempt(4)
        assert status["restarts"]["counted"] == 0
        assert {failure["reason"] for failure in status["failures"]} == {"NodeLost"}


def test_replaced_coordinator_announces_its_new_address(tmp_path: Path) -> None:
    """The others still resolve the coordinator's name to the old address (stale DNS); no recovery waits for DNS."""
    with running(tmp_path, 3) as group:
        group.wait_attempt(1)
        group.agents[0].kill()
        group.agents[0].wait()
        new = free_ports(1)[0]
        peers = group.peers.replace(str(group.ports[0]), str(new))
        group.ports[0] = new
        started = time.monotonic()
        group.start(0, DTJ_PEERS=peers, DTJ_LISTEN=f"127.0.0.1:{new}", DTJ_STATE_DIR=str(tmp_path / "new-disk"))
        group.wait_attempt(2)
        print(f"coordinator at a new address -> next step: {time.monotonic() - started:.3f} s")


def test_replaced_member_with_a_stale_coordinator_name_asks_its_peers(tmp_path: Path) -> None:
    """Pods 0 and 2 are replaced together: 2 can't find 0 by name, but 1 knows the address."""
    with running(tmp_path, 3) as group:
        group.wait_attempt(1)
        for ordinal in (0, 2):
            group.agents[ordinal].kill()
            group.agents[ordinal].wait()
        stale, new = group.ports[0], free_ports(1)[0]
        # Pod 0 does not know the address of pod 2 either.
        peers = group.peers.replace(str(group.ports[2]), str(free_ports(1)[0]))
        group.ports[0] = new
        group.start(
            0,
            DTJ_PEERS=peers.replace(str(stale), str(new)),
            DTJ_LISTEN=f"127.0.0.1:{new}",
            DTJ_STATE_DIR=str(tmp_path / "d0"),
        )
        group.start(2, DTJ_STATE_DIR=str(tmp_path / "d2"))
        group.wait_attempt(2)


def test_worker_that_hangs_on_sigterm_is_killed_soon_in_a_failed_group(tmp_path: Path) -> None:
    """The worker saves nothing, so the grace of a terminating pod does not apply."""
    with running(tmp_path, 2, DTJ_GRACE_SECONDS="60") as group:
        group.tell("ignore-sigterm")
        group.wait_attempt(1)
        kill(group.worker(0))
        stop = group.wait_attempt(2)["recoveries"][-1]["seconds"]["stop"]
        assert stop < 30, "not the 60 s of a terminating pod"


def test_frozen_agent_is_lost_after_missed_heartbeats(tmp_path: Path) -> None:
    """A node that is gone closes no connection, so only silence shows its loss."""
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        kill(group.agents[1].pid, signal.SIGSTOP)
        try:
            wait_until("a rendezvous", lambda: group.status().get("phase") == "Rendezvous", detail=group.logs)
            assert group.status()["waitingFor"] == [1]
        finally:
            kill(group.agents[1].pid, signal.SIGCONT)
        recovery = group.wait_attempt(2)["recoveries"][-1]
        assert 4.5 < recovery["seconds"]["detect"] < 60
        assert (recovery["reason"], recovery["counted"]) == ("ConnectionLost", False)


def test_last_report_of_a_worker_arrives_though_the_coordinator_is_away(tmp_path: Path) -> None:
    """The report may be the only explanation: a lost lease, a save that failed."""
    with running(tmp_path, 2) as group:
        group.wait_attempt(1)
        group.tell("report-on-sigterm")
        kill(group.worker(1))  # the next workers follow the plan
        group.wait_attempt(2)
        group.agents[0].kill()
        group.wait_exit(0)
        wait_until(
            "the end of rank 1",
            lambda: "rank 1 exited" in group.log(1).rpartition("attempt 2")[2],
            detail=lambda: group.log(1),
        )
        group.start(0)
        group.wait_attempt(3)
        heard = lambda: [(event["reason"], event["message"]) for event in group.status()["events"]]  # noqa: E731
        wait_until("the last event of rank 1", lambda: ("LastWord", "of 1") in heard(), detail=group.logs)
