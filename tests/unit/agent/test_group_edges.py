"""Cases of the group protocol that only a planted bug would show (mutations.toml)."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group.history import History
from dtj_agent.group.member import Identity, Member
from dtj_agent.group.messages import Now
from dtj_agent.group.node_ranks import assign_node_ranks
from dtj_agent.group.recovery_timer import IN_PLACE, RecoveryTimer
from dtj_contract import names
from tests.unit.agent.coordinator_harness import WALL, CoordinatorHarness


def broke(attempt: int = 1) -> dict[str, Any]:
    return {"attempt": attempt, "silence": 0.0, "ago": 1.0, "step": 5}


@pytest.mark.parametrize("type_", ["stopped", "done"])
@pytest.mark.parametrize("attempt", [0, 2])
def test_end_of_another_attempt_is_no_end_of_this_one(type_: str, attempt: int) -> None:
    harness = CoordinatorHarness(2).running()
    harness.fail(0)
    harness.stopped(0)
    harness.receive(1, type_, attempt=attempt, port=1)
    assert (harness.coordinator.phase, harness.coordinator.peers[1].state) == ("Stopping", "stopping")


def test_member_that_is_lost_after_its_stop_makes_the_recovery_one_of_a_pod() -> None:
    harness = CoordinatorHarness(2).running()
    harness.fail(0)
    harness.stopped(1)
    harness.leave(1)
    harness.stopped(0)
    harness.join(1, generation=1)
    assert harness.coordinator.history.recoveries[-1]["kind"] == "Pod"


def test_new_coordinator_starts_after_the_latest_attempt_that_it_hears_of() -> None:
    harness = CoordinatorHarness(2)
    for attempt in (7, 3):
        harness.do(harness.coordinator.heard_of(attempt, harness.now()))
    harness.join(0)
    harness.join(1)
    assert harness.leases == [8]
    assert harness.coordinator.phase == "Running"


def test_new_coordinator_that_hears_of_later_attempts_ends_no_job() -> None:
    harness = CoordinatorHarness(2, rendezvous_timeout=60.0)
    harness.do(harness.coordinator.heard_of(7, harness.now()))
    harness.wait(3600)
    assert harness.coordinator.outcome is None


def test_members_that_were_done_in_different_attempts_repeat_the_last() -> None:
    past = History()
    past.attempt = 2
    harness = CoordinatorHarness(2, history=past)
    harness.join(0, state="done", attempt=1, history=past.to_json())
    harness.join(1, state="done", attempt=2, history=past.to_json())
    assert harness.coordinator.outcome is None
    assert [message["attempt"] for _, message in harness.messages("start")] == [3, 3]


def test_failures_that_a_spare_reports_are_dropped() -> None:
    harness = CoordinatorHarness(2).running()
    harness.join(2)
    harness.fail(2)
    assert harness.coordinator.phase == "Running"


def test_workers_of_a_spare_are_not_waited_for() -> None:
    harness = CoordinatorHarness(2).running()
    harness.fail(0)
    harness.join(2, state="stopping", attempt=1)
    harness.stopped(0, 1)
    assert harness.coordinator.phase == "Running"


def test_new_agent_in_a_pod_that_announced_its_end_is_no_lost_connection() -> None:
    harness = CoordinatorHarness(2).running()
    harness.leave(1)
    harness.stopped(0)
    harness.join(1, generation=1, incarnation="another", attempt=1, interrupted=broke())
    assert harness.coordinator.history.recoveries[-1]["reason"] == "PodLost"


def test_start_of_the_job_is_that_of_its_first_attempt() -> None:
    harness = CoordinatorHarness(2).running()
    began = harness.coordinator.history.start_time
    harness.wait(100)
    harness.fail(0)
    harness.stopped(0, 1)
    assert (harness.coordinator.history.attempt, harness.coordinator.history.start_time) == (2, began)


def test_training_that_was_lost_is_not_productive_while_the_group_gathers() -> None:
    harness = CoordinatorHarness(2).running()
    harness.grants = False
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "phase": "training", "step": 1, "stepped": True})
    harness.wait(10)
    assert harness.coordinator.goodput.productive_seconds(harness.now()) == 10
    harness.fail(0)
    harness.stopped(0, 1)
    assert harness.coordinator.goodput.productive_seconds(harness.now()) == 0


def test_loading_is_not_productive() -> None:
    harness = CoordinatorHarness(2).running()
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "phase": "loading"})
    harness.wait(10)
    harness.receive(0, "progress", attempt=1, progress={"rank": 0, "phase": "training", "step": 1})
    harness.wait(5)
    harness.receive(0, "progress", attempt=1, progress={"checkpoint": {"step": 1, "path": "p", "time": 1.0}})
    assert harness.coordinator.history.productive == 5


def test_agent_that_dials_again_replaces_its_own_connection() -> None:
    harness = CoordinatorHarness(2).running()
    harness.join(1, generation=1, attempt=1, interrupted=broke())
    assert harness.closed == [1]
    assert harness.coordinator.peers[1].conn == 11


def test_lost_pod_is_shown_with_its_first_rank() -> None:
    harness = CoordinatorHarness(3).running()
    harness.leave(1)
    harness.stopped(0, 2)
    assert [(f["ordinal"], f["rank"]) for f in harness.coordinator.history.failures] == [(1, 2)]


def test_members_that_are_done_are_stopped_with_the_others() -> None:
    harness = CoordinatorHarness(2).running()
    harness.receive(0, "done", attempt=1, port=1)
    harness.fail(1)
    assert [ordinal for ordinal, _ in harness.messages("stop")] == [0, 1]
    harness.stopped(1)
    assert harness.coordinator.phase == "Stopping"


def test_failing_volume_is_tried_again_after_a_pause() -> None:
    harness = CoordinatorHarness(1)
    harness.grants = False
    harness.join(0)
    harness.do(harness.coordinator.lease_done(1, None, "Input/output error", harness.now()))
    harness.wait(names.LEASE_RETRY_SECONDS / 2)
    assert harness.leases == [1]
    harness.wait(names.LEASE_RETRY_SECONDS / 2)
    assert harness.leases == [1, 1]


@pytest.mark.parametrize("ordinals", [[0, 1, 2], [2, 0, 1]])
def test_node_ranks_follow_the_ordinals(ordinals: list[int]) -> None:
    assert assign_node_ranks(ordinals) == {0: 0, 1: 1, 2: 2}


def test_heartbeat_carries_the_productive_time_which_never_shrinks() -> None:
    history = History()
    for seconds in (5.0, 3.0):
        history.apply_live({"productiveSeconds": seconds})
    assert history.productive == 5.0


def test_history_with_the_notes_of_a_new_process_is_newer_than_its_parts() -> None:
    copied, theirs = History(), History()
    theirs.revision = 4
    own = copied.copy()
    own.event("Warning", "Slow", "m", WALL)
    theirs.take_over(own, copied)
    assert theirs.revision == 5
    assert [event["reason"] for event in theirs.events] == ["Slow"]


def test_member_reports_a_crash_once() -> None:
    me = Identity("uid", 1, "i", "j-1", "n", "a", 5.0)
    member = Member(me, {"attempt": 1, "state": "running"}, None)
    now = Now(1.0, WALL)
    assert member.hello(now)["crashed"]
    start = {"type": "start", "attempt": 2, "nodeRank": 0, "nodes": 1, "masterAddr": "a", "masterPort": 1}
    member.received({**start, "history": {}}, now)
    assert not member.hello(now)["crashed"]


def test_recovery_that_resumes_beyond_the_last_known_step_has_lost_none() -> None:
    recovery = RecoveryTimer(IN_PLACE, "WorkerFailed", Now(0.0, WALL), 0.0, 7)
    recovery.resumed_step = 9
    assert recovery.to_json()["lostSteps"] == 0


def test_recovery_adds_up_a_phase_that_it_enters_again() -> None:
    recovery = RecoveryTimer(IN_PLACE, "WorkerFailed", Now(0.0, WALL), 0.0, None)
    for time, phase in enumerate(("schedule", "rendezvous", "schedule", "rendezvous", "load"), start=1):
        recovery.enter(phase, Now(float(time), WALL))
    assert recovery.to_json()["seconds"] == {
        "detect": 0.0,
        "stop": 1.0,
        "schedule": 2.0,
        "rendezvous": 2.0,
    }
