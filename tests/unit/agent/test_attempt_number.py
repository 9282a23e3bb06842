"""The number of an attempt: one more than any known one, and leased before it counts."""

from __future__ import annotations

import pytest

from dtj_agent.group.history import History
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness

NUMBERS = {
    "the first": ({}, [0, 0], 1),
    "the operator's floor": ({"attempt_floor": 7}, [0, 0], 7),
    "a peer's memory": ({}, [0, 4], 5),
    "the floor is below": ({"attempt_floor": 3}, [6, 0], 7),
}


@pytest.mark.parametrize(("spec", "known", "attempt"), NUMBERS.values(), ids=NUMBERS)
def test_attempt_number_exceeds_every_known_one(spec: dict[str, int], known: list[int], attempt: int) -> None:
    harness = CoordinatorHarness(2, **spec)
    for ordinal, number in enumerate(known):
        harness.join(ordinal, attempt=number)
    assert harness.messages("start")[0][1]["attempt"] == attempt


def test_taken_lease_raises_the_attempt_number() -> None:
    harness = CoordinatorHarness(1)
    harness.grants = False
    harness.join(0)
    harness.grants = True
    harness.do(harness.coordinator.lease_done(1, 8, None, harness.now()))
    assert (harness.leases, harness.messages("start")[0][1]["attempt"]) == ([1, 9], 9)


def test_later_lease_of_another_coordinator_stops_this_one() -> None:
    """The old pod 0 lives on: outbidding the new one would cost the new workers their lease."""
    harness = CoordinatorHarness(1)
    harness.join(0)
    harness.fail(0)
    harness.grants = False
    harness.stopped(0)
    harness.do(harness.coordinator.lease_done(2, 2, None, harness.now()))
    harness.time += 100
    harness.do(harness.coordinator.tick(harness.now()))
    assert (harness.leases, len(harness.messages("start"))) == ([1, 2], 1)
    assert (harness.coordinator.phase, harness.coordinator.phase_reason) == ("Rendezvous", "CheckpointLeaseLost")


def test_lease_found_after_an_error_is_this_coordinators_own() -> None:
    """The volume failed after the rename."""
    harness = CoordinatorHarness(1)
    harness.join(0)
    harness.fail(0)
    harness.grants = False
    harness.stopped(0)
    harness.do(harness.coordinator.lease_done(2, None, "Input/output error", harness.now()))
    harness.time += 2
    harness.do(harness.coordinator.tick(harness.now()))
    harness.do(harness.coordinator.lease_done(2, 2, None, harness.now()))
    assert harness.leases == [1, 2, 2, 3]


def test_hanging_lease_is_reported_and_a_stale_answer_ignored() -> None:
    harness = CoordinatorHarness(1)
    harness.grants = False
    harness.join(0)
    harness.time += names.LEASE_DEADLINE_SECONDS + 1
    harness.do(harness.coordinator.tick(harness.now()))
    assert harness.coordinator.phase_reason == "CheckpointVolumeUnavailable"
    assert "has not answered" in harness.coordinator.history.events[-1]["message"]
    harness.do(harness.coordinator.lease_done(99, None, None, harness.now()))
    assert not harness.messages("start")


def test_member_that_leaves_before_the_lease_is_waited_for() -> None:
    harness = CoordinatorHarness(2)
    harness.grants = False
    harness.join(0)
    harness.join(1)
    harness.leave(1)
    harness.do(harness.coordinator.lease_done(1, None, None, harness.now()))
    assert not harness.messages("start")
    harness.grants = True
    harness.join(1, generation=1)
    assert harness.messages("start")[0][1]["attempt"] == 2


def test_agent_that_knows_a_later_attempt_is_rejected() -> None:
    """Another coordinator has started that one: it has replaced this one."""
    harness = CoordinatorHarness(2).running()
    harness.leave(1)
    harness.join(1, generation=1, attempt=2)
    assert harness.closed == [11]
    harness.join(1, generation=2, attempt=1)
    assert harness.closed == [11]


FAILED = {"uid": "uid", "result": "Failed", "reason": "RendezvousTimeout", "message": "m", "failure": None}


def test_outcome_of_an_earlier_attempt_does_not_end_the_job() -> None:
    """A replaced coordinator has sent the outcome to an agent that knew no later attempt."""
    past = History()
    past.attempt = 5
    harness = CoordinatorHarness(2, history=past)
    harness.join(0, attempt=5)
    harness.join(1, state="finished", attempt=1, outcome={**FAILED, "attempt": 1})
    assert harness.coordinator.outcome is None
    assert [message["history"]["attempt"] for ordinal, message in harness.messages("history") if ordinal == 1] == [5]
    harness.stopped(1, attempt=1)
    assert harness.messages("start")[0][1]["attempt"] == 6


def test_outcome_of_the_last_attempt_is_adopted() -> None:
    past = History()
    past.attempt = 5
    harness = CoordinatorHarness(2, history=past)
    harness.join(1, state="finished", attempt=5, outcome={**FAILED, "attempt": 5})
    assert harness.coordinator.outcome == {**FAILED, "attempt": 5}


def test_outcome_before_the_first_attempt_belongs_to_the_run() -> None:
    harness = CoordinatorHarness(2, attempt_floor=6, rendezvous_timeout=60.0)
    harness.join(0)
    harness.wait(61)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["attempt"] == 5


def test_coordinator_that_is_behind_neither_starts_nor_ends_anything() -> None:
    harness = CoordinatorHarness(2, rendezvous_timeout=60.0, max_restarts=0).running()
    harness.leave(1)
    harness.stopped(0)
    harness.do(harness.coordinator.heard_of(2, harness.now()))
    harness.wait(3600)
    harness.join(1, generation=1, attempt=1)
    assert (harness.coordinator.outcome, harness.messages("start")) == (None, [])
    assert harness.coordinator.phase_message(harness.now()) == "another coordinator of this job has started attempt 2"


def test_new_process_of_pod_0_ends_the_job_only_with_all_members() -> None:
    """Its pod may have been replaced: then the job continues elsewhere, whatever the crash has cost."""
    past = History()
    past.attempt = 1
    broke = {"attempt": 1, "silence": 0.0, "ago": 1.0, "step": 5}
    harness = CoordinatorHarness(2, history=past, max_restarts=0)
    harness.join(0, attempt=1, crashed=True, interrupted=broke, history=past.to_json())
    assert harness.coordinator.outcome is None
    harness.join(1, attempt=1, interrupted=broke, history=past.to_json())
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RestartBudgetSpent"


def test_failure_of_a_superseded_attempt_does_not_end_the_job() -> None:
    harness = CoordinatorHarness(2, max_restarts=0).running()
    harness.do(harness.coordinator.heard_of(2, harness.now()))
    harness.fail(0)
    harness.stopped(0, 1)
    assert (harness.coordinator.outcome, harness.coordinator.phase, harness.messages("start")) == (
        None,
        "Rendezvous",
        [],
    )


def test_replaced_coordinator_with_pod_0s_name_continues() -> None:
    harness = CoordinatorHarness(2).running()
    harness.leave(1)
    harness.stopped(0)
    harness.join(1, generation=1, attempt=2)
    assert harness.closed == [11]
    harness.do(harness.coordinator.named(harness.now()))
    theirs = History()
    theirs.attempt = 2
    harness.join(1, generation=2, attempt=2, history=theirs.to_json())
    assert harness.messages("start")[0][1]["attempt"] == 3


def test_coordinator_that_is_not_replaced_ignores_its_name() -> None:
    harness = CoordinatorHarness(2).running()
    harness.do(harness.coordinator.named(harness.now()))
    assert (harness.coordinator.succession.started, harness.coordinator.phase) == (1, "Running")


def test_new_process_announces_what_its_pod_remembers() -> None:
    past = History()
    past.attempt = 5
    harness = CoordinatorHarness(2, history=past)
    assert (harness.coordinator.succession.started, harness.coordinator.succession.announced) == (0, 5)
    assert CoordinatorHarness(2).coordinator.succession.announced == 0
    assert harness.running().coordinator.succession.announced == 6


def test_finished_coordinator_rejects_agents_with_later_attempts() -> None:
    harness = CoordinatorHarness(2, final={**FAILED, "attempt": 1})
    harness.join(1, attempt=2)
    assert (harness.closed, harness.sent) == ([1], [])


def test_agent_of_another_protocol_version_is_rejected_with_a_log_line() -> None:
    harness = CoordinatorHarness(2)
    harness.join(1, version=2)
    assert harness.closed == [1]
    assert any("version 2 of the protocol, this one 1" in line for line in harness.log)


def test_attempt_gets_a_new_number_if_a_joining_agent_knows_a_later_one() -> None:
    harness = CoordinatorHarness(1)
    harness.grants = False
    harness.join(0)
    past = History()
    past.attempt = 7
    harness.join(1, attempt=7, history=past.to_json())  # a spare that remembers
    assert harness.leases == [1]
    harness.do(harness.coordinator.lease_done(1, None, None, harness.now()))
    assert not harness.messages("start")
    assert harness.leases == [1, 8]
