"""Few pods of an elastic job that can't reach the others, which continue without them."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group.history import History
from dtj_agent.group.members import Members
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.formation_harness import elastic, started

OUTRUN = "attempt 6 was started by pods that can't be reached from here"


def past(members: int = 4) -> History:
    """Returns the memory of attempt 5."""
    history = History()
    history.attempt, history.revision = 5, 9
    history.members = Members.of(range(members))
    return history


def alone(least: int = 1, **spec: float) -> CoordinatorHarness:
    """Returns the group of pod 3 of four, which leads itself; it has waited until it might start."""
    harness = elastic(4, least, joined=0, history=past(), ordinal=3, **spec)
    harness.grants = False
    join(harness, 3)
    for _ in range(70):
        harness.wait(1)
    return harness


def join(harness: CoordinatorHarness, ordinal: int, attempt: int = 5) -> None:
    harness.join(ordinal, attempt=attempt, history=harness.coordinator.history.to_json())


def lease(harness: CoordinatorHarness, taken: int | None = None) -> None:
    """Answers the request for a lease."""
    harness.do(harness.coordinator.lease_done(harness.leases[-1], taken, None, harness.now()))


def test_pod_that_is_outrun_requests_no_other_number_and_reports_why() -> None:
    harness = alone()
    assert harness.leases == [6]
    lease(harness, taken=6)
    harness.wait(100)
    assert (harness.leases, started(harness)) == ([6], [])
    assert harness.coordinator.phase_message(harness.now()) == OUTRUN


def test_outrun_pod_continues_with_a_majority() -> None:
    harness = alone()
    lease(harness, taken=6)
    join(harness, 1)
    assert harness.leases == [6], "two of four are no majority without pod 0"
    join(harness, 2)
    harness.wait(names.FIRST_START_SECONDS - 1)
    assert harness.leases == [6], "pod 0 may know attempt 6, and that it has ended the job"
    assert harness.coordinator.phase_message(harness.now()) == OUTRUN
    harness.wait(1)
    assert harness.leases == [6, 7]
    assert harness.coordinator.phase_message(harness.now()) != OUTRUN
    lease(harness)
    assert started(harness) == [[1, 2, 3]]


def test_outrun_pod_continues_once_an_agent_here_remembers_the_attempt() -> None:
    harness = alone()
    lease(harness, taken=6)
    join(harness, 1, attempt=6)
    assert harness.leases == [6, 7]


def test_pod_that_is_alone_starts_if_nobody_has_outrun_it() -> None:
    harness = alone()
    lease(harness)
    assert started(harness) == [[3]]
    assert not harness.coordinator.epoch.is_outrun(5, harness.now())


def test_coordinator_that_has_started_an_attempt_steps_down_as_before() -> None:
    harness = alone()
    lease(harness)
    harness.fail(3, attempt=6)
    harness.stopped(3, attempt=6)
    harness.wait(200)
    lease(harness, taken=8)
    assert (harness.leases, harness.coordinator.epoch.taken) == ([6, 7], 0)
    assert [down.why for down in harness.stepped_down] == ["another coordinator of this job has started attempt 8"]


@pytest.mark.parametrize("joined", [(3,), (0, 1, 3)], ids=["minority", "majority"])
def test_only_a_majority_of_an_elastic_group_ends_the_job_by_its_timeout(joined: tuple[int, ...]) -> None:
    harness = elastic(4, 4, joined=0, history=past(), ordinal=3, rendezvous_timeout=30.0)
    for ordinal in joined:
        join(harness, ordinal)
    harness.wait(100)
    final = harness.coordinator.outcome
    assert (final and final["reason"]) == (None if len(joined) == 1 else "RendezvousTimeout")


def test_start_below_a_promise_of_a_member_is_not_sent() -> None:
    """An agent that joins while the number is granted may have promised a greater one."""
    harness = CoordinatorHarness(3, has_volume=False)
    harness.promises = False
    for ordinal in (0, 1, 2):
        harness.join(ordinal)
    harness.leave(2)
    harness.join(2, generation=1, promised=4)
    for ordinal in (0, 1):
        harness.receive(ordinal, "promised", attempt=1, granted=True, known=0)
    assert started(harness) == []
    harness.promises = True
    promised = {message["attempt"] for _, message in harness.messages("promise")}
    assert promised == {1, 5}


@pytest.mark.parametrize(("attempt", "counted"), [(5, []), (0, ["PodLost"])], ids=["same pod", "new pod"])
def test_lost_leader_is_a_lost_pod_unless_its_agent_returns_in_it(attempt: int, counted: list[str]) -> None:
    harness = CoordinatorHarness(3, history=past(3), ordinal=1)
    broke = {"attempt": 5, "silence": 0.1, "ago": 0.1, "step": None, "leader": 0}
    harness.join(1, attempt=5, interrupted=broke)
    decided: list[str] = []
    decide = harness.coordinator.policy.decide

    def spied(failure: dict[str, Any], *rest: Any, **options: Any) -> Any:
        decided.append(failure["reason"])
        return decide(failure, *rest, **options)

    harness.coordinator.policy.decide = spied  # type: ignore[method-assign]
    harness.join(0, attempt=attempt)
    harness.leave(0)
    harness.join(0, generation=1, incarnation="new")
    assert decided == counted
