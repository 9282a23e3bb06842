"""The number of an attempt: one more than any known one, and leased before it counts."""

from __future__ import annotations

import pytest

from dtj_agent.group.effects import StepDown
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
    assert (harness.leases, len(harness.messages("start"))) == ([1, 2], 1)
    assert harness.coordinator.phase_reason == "CheckpointLeaseLost"
    assert [effect.why for effect in harness.stepped_down] == ["another coordinator of this job has started attempt 2"]


def test_lease_found_after_an_error_may_be_another_coordinators() -> None:
    """The volume failed after the rename, or before it, and another coordinator has the number."""
    harness = CoordinatorHarness(1)
    harness.join(0)
    harness.fail(0)
    harness.grants = False
    harness.stopped(0)
    harness.do(harness.coordinator.lease_done(2, None, "Input/output error", harness.now()))
    harness.time += 2
    harness.do(harness.coordinator.tick(harness.now()))
    harness.do(harness.coordinator.lease_done(2, 2, None, harness.now()))
    assert harness.leases == [1, 2, 2]
    assert [effect.why for effect in harness.stepped_down] == ["another coordinator of this job has started attempt 2"]


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


def test_agent_that_knows_a_later_attempt_ends_the_leadership() -> None:
    """Another coordinator has started that one: it has replaced this one."""
    harness = CoordinatorHarness(2).running()
    harness.leave(1)
    theirs = History()
    theirs.attempt = 2
    harness.join(1, generation=1, attempt=2, history=theirs.to_json())
    assert harness.stepped_down == [StepDown("j-1 knows attempt 2 of another one", theirs.to_json())]
    assert not harness.messages("start")


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


def test_coordinator_that_hears_of_a_later_attempt_steps_down() -> None:
    harness = CoordinatorHarness(2).running()
    harness.do(harness.coordinator.heard_of(1, harness.now()))
    assert not harness.stepped_down
    harness.do(harness.coordinator.heard_of(2, harness.now()))
    assert [effect.history for effect in harness.stepped_down] == [None]


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


def test_finished_coordinator_that_meets_a_later_attempt_forgets_its_outcome() -> None:
    harness = CoordinatorHarness(2, final={**FAILED, "attempt": 1})
    theirs = History()
    theirs.attempt = 2
    harness.join(1, attempt=2, history=theirs.to_json())
    assert ([effect.history for effect in harness.stepped_down], harness.sent) == ([theirs.to_json()], [])


def without_promises(replicas: int, spares: int = 0) -> CoordinatorHarness:
    """Returns a coordinator without a volume, whose members answer only as the test does."""
    harness = CoordinatorHarness(replicas, spares=spares, has_volume=False)
    harness.promises = False
    return harness


def promised(harness: CoordinatorHarness, *ordinals: int, attempt: int, granted: bool = True, known: int = 0) -> None:
    for ordinal in ordinals:
        harness.receive(ordinal, "promised", attempt=attempt, granted=granted, known=known)


@pytest.mark.parametrize(("replicas", "spares", "voters", "starts"), [
    (3, 0, [0], False), (3, 0, [1, 2], True), (4, 0, [1, 2], False), (4, 0, [0, 3], True), (4, 0, [1, 2, 3], True),
    (2, 1, [0, 1], True), (3, 2, [0, 1], False), (1, 0, [0], True),
])  # fmt: skip
def test_attempt_without_a_volume_starts_with_a_majority_of_promises(
    replicas: int, spares: int, voters: list[int], starts: bool
) -> None:
    harness = without_promises(replicas, spares=spares)
    for ordinal in range(replicas + spares):
        harness.join(ordinal)
    assert harness.leases == []
    promised(harness, *voters, attempt=1)
    assert harness.coordinator.phase == ("Running" if starts else "Rendezvous")


def test_refused_promise_raises_the_attempt_number() -> None:
    harness = without_promises(2)
    harness.join(0)
    harness.join(1)
    promised(harness, 1, attempt=1, granted=False, known=4)
    promised(harness, 0, attempt=1)
    assert not harness.messages("start")
    promised(harness, 0, 1, attempt=5)
    assert [message["attempt"] for _, message in harness.messages("start")] == [5, 5]


def test_number_that_a_member_has_promised_to_another_coordinator_is_not_asked_for() -> None:
    harness = without_promises(1)
    harness.join(0, promised=6)
    assert [message["attempt"] for _, message in harness.messages("promise")] == [7]


def test_member_that_joins_while_promises_are_asked_for_is_asked_too() -> None:
    harness = without_promises(2)
    harness.join(0)
    harness.join(1)
    harness.join(2)
    assert [ordinal for ordinal, _ in harness.messages("promise")] == [0, 1, 2]


def test_agent_of_another_protocol_version_is_rejected_with_a_log_line() -> None:
    harness = CoordinatorHarness(2)
    harness.join(1, version=1)
    assert harness.closed == [1]
    assert any("version 1 of the protocol, this one 2" in line for line in harness.log)


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


def test_rendezvous_timeout_begins_when_the_group_gathers() -> None:
    harness = CoordinatorHarness(2, rendezvous_timeout=60.0).running()
    harness.wait(100)
    harness.leave(1)
    harness.stopped(0)
    harness.wait(59)
    assert harness.coordinator.outcome is None
    harness.wait(2)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RendezvousTimeout"
