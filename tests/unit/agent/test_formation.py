"""Spares and elastic groups: which agents form an attempt, and when a running one is resized."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group.formation import Sizes, startable
from dtj_agent.group.history import History
from dtj_agent.group.members import Members
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.formation_harness import elastic, promise, reasons, recoveries, started, with_spare

STARTS = {
    "all are there": (Sizes(3, 3, 2), 3, False, 3),
    "more are there than wanted": (Sizes(3, 3, 2), 5, False, 3),
    "one is away": (Sizes(3, 3, 2), 2, False, 0),
    "one is away for too long": (Sizes(3, 3, 2), 2, True, 2),
    "too many are away": (Sizes(3, 3, 2), 1, True, 0),
    "as many as in the last attempt": (Sizes(4, 3, 2), 3, False, 3),
    "more than in the last attempt": (Sizes(5, 3, 2), 4, False, 4),
    "fewer than in the last attempt": (Sizes(5, 3, 2), 2, False, 0),
    "a job that is not elastic": (Sizes(3, 3, 3), 2, True, 0),
}


@pytest.mark.parametrize(("sizes", "free", "is_over", "size"), STARTS.values(), ids=STARTS)
def test_size_of_an_attempt_that_starts_now(sizes: Sizes, free: int, is_over: bool, size: int) -> None:
    assert startable(sizes, free, is_over) == size


# --- spares -----------------------------------------------------------------------------------------------------------


def test_spare_takes_the_ranks_of_a_lost_pod_at_once() -> None:
    harness = with_spare()
    harness.leave(0)
    harness.stopped(1)
    assert started(harness) == [[0, 1], [1, 2]]
    assert harness.coordinator.waiting_for == []
    assert recoveries(harness) == [("Spare", "PodLost", False)]
    assert harness.coordinator.history.restarts == {"inPlace": 0, "pod": 1, "counted": 0}
    (event,) = harness.coordinator.history.events
    assert event["reason"] == "SpareUsed"
    assert event["message"] == "j-2, warm and idle until now, took the place of j-0"


def test_pod_that_returns_is_the_new_spare_and_restarts_nothing() -> None:
    harness = with_spare()
    harness.leave(0)
    harness.stopped(1)
    harness.join(0, generation=1, incarnation="new")
    harness.wait(100)
    assert (harness.coordinator.phase, len(started(harness))) == ("Running", 2)
    harness.leave(2)
    harness.stopped(1, attempt=2)
    assert started(harness)[2:] == [[0, 1]]


def test_group_without_a_free_spare_waits_for_any_pod() -> None:
    harness = with_spare()
    harness.leave(0)
    harness.leave(2)
    harness.stopped(1)
    assert harness.coordinator.waiting_for == [0, 2]
    harness.wait(1000)
    assert len(started(harness)) == 1
    harness.join(2, generation=1, incarnation="new")
    assert started(harness)[1:] == [[1, 2]]
    assert recoveries(harness) == [("Pod", "PodLost", False)], "the group has waited"


@pytest.mark.parametrize("trouble", ["leaves", "terminates", "is stuck"])
def test_idle_spare_that_breaks_harms_nobody(trouble: str) -> None:
    harness = with_spare()
    if trouble == "leaves":
        harness.leave(2)
    elif trouble == "terminates":
        harness.receive(2, "leaving", grace=5.0)
    else:
        harness.receive(2, "stuck", attempt=0, what="processes do not die")
    harness.wait(100)
    assert (harness.coordinator.phase, len(started(harness))) == ("Running", 1)
    harness.fail(1)
    harness.stopped(0, 1)
    assert started(harness) == [[0, 1], [0, 1]]
    assert recoveries(harness) == [("InPlace", "WorkerFailed", True)]


def test_spare_that_is_lost_while_the_group_stops_makes_no_pod_recovery() -> None:
    harness = with_spare()
    harness.fail(1)
    harness.leave(2)
    harness.stopped(0, 1)
    assert recoveries(harness) == [("InPlace", "WorkerFailed", True)]


def test_success_of_the_members_ends_the_job_on_the_spare_too() -> None:
    harness = with_spare()
    for ordinal in (0, 1):
        harness.receive(ordinal, "done", attempt=1, port=1)
    assert [ordinal for ordinal, _ in harness.messages("finish")] == [0, 1, 2]


def test_new_coordinator_knows_the_members_that_have_done_the_attempt() -> None:
    """The members were 1 and 2: an idle pod 0 does not count."""
    harness = with_spare()
    harness.leave(0)
    harness.stopped(1)
    history = harness.coordinator.history.to_json()
    new = CoordinatorHarness(2, spares=1)
    new.join(0)
    for ordinal in (1, 2):
        assert new.coordinator.outcome is None
        new.join(ordinal, state="done", attempt=2, history=history)
    assert new.coordinator.outcome is not None
    assert new.coordinator.outcome["result"] == "Succeeded"
    assert new.coordinator.outcome["message"] == "all 4 workers of attempt 2 exited with 0"


def test_failure_after_a_swap_keeps_the_ranks_in_the_pods_that_have_them() -> None:
    harness = with_spare()
    harness.leave(0)
    harness.stopped(1)
    harness.join(0)
    harness.fail(2, attempt=2)
    harness.stopped(1, 2, attempt=2)
    assert started(harness) == [[0, 1], [1, 2], [1, 2]]


def test_leader_of_a_group_that_has_started_nothing_leaves_it_to_the_first_pod() -> None:
    harness = CoordinatorHarness(2, spares=1, ordinal=2)
    for ordinal in (2, 1):
        harness.join(ordinal)
    harness.join(0)
    assert ([down.why for down in harness.stepped_down], started(harness)) == (["j-0 is the first of the group"], [])


def lost_leader() -> History:
    """Returns the memory of a group of two and a spare, whose pod 0 has led it."""
    harness = with_spare()
    assert started(harness) == [[0, 1]]
    return harness.coordinator.history


def test_new_coordinator_uses_a_spare_once_a_member_shows_that_the_attempt_broke() -> None:
    new = CoordinatorHarness(2, spares=1)
    new.join(2)
    new.join(1, attempt=1, history=lost_leader().to_json())
    assert started(new) == [[1, 2]]
    assert recoveries(new) == [("Spare", "PodLost", False)]


@pytest.mark.parametrize(("seconds", "kind"), [(1.5, "Spare"), (3.0, "Pod")])
def test_spare_that_a_new_coordinator_gathers_within_two_seconds_has_not_waited(seconds: float, kind: str) -> None:
    new = CoordinatorHarness(2, spares=1)
    new.join(2)
    new.wait(seconds)
    new.join(1, attempt=1, history=lost_leader().to_json())
    assert started(new) == [[1, 2]]
    assert recoveries(new) == [(kind, "PodLost", False)]


def test_new_coordinator_among_pods_that_know_nothing_waits_for_the_others() -> None:
    """The pod that is away may know of an attempt, or of its success."""
    new = CoordinatorHarness(2, spares=1)
    new.join(0)
    new.join(2)
    new.wait(names.TAKEOVER_SECONDS - 1)
    assert started(new) == []
    new.wait(1.1)
    assert started(new) == [[0, 2]], "as a new job starts whose spare has no room"


def test_few_pods_that_know_nothing_never_start_without_a_volume() -> None:
    new = CoordinatorHarness(2, spares=3, has_volume=False)
    new.join(0)
    new.join(2)
    new.wait(1000)
    assert started(new) == []
    new.join(4)
    promise(new)
    assert started(new) == [[0, 2]]


def test_first_attempt_takes_the_lowest_ordinals_in_whatever_order_they_join() -> None:
    harness = CoordinatorHarness(2, spares=1)
    for ordinal in (2, 1, 0):
        harness.join(ordinal)
    assert started(harness) == [[0, 1]]


def test_pod_that_is_scaled_away_comes_after_all_others() -> None:
    roster = elastic(4, 1).coordinator.roster
    for peer in list(roster.peers.values()):
        peer.state = "idle"
    roster.pods, roster.size, roster.last = 2, 2, Members.of([2, 3])
    assert [peer.ordinal for peer in roster.ready()] == [0, 1]


def test_spares_know_of_each_attempt() -> None:
    harness = with_spare()
    harness.sent.clear()
    harness.leave(0)
    harness.join(0, generation=1, incarnation="new")
    harness.stopped(1)
    sent = [message["history"]["attempt"] for ordinal, message in harness.messages("history") if ordinal == 2]
    assert sent[-1] == 2


# --- elastic: smaller -------------------------------------------------------------------------------------------------


def test_elastic_group_shrinks_when_a_lost_pod_does_not_return_in_time() -> None:
    harness = elastic()
    harness.leave(0)
    harness.wait(1)  # the wait is measured from the loss
    harness.stopped(1, 2)
    harness.wait(8.9)
    assert len(started(harness)) == 1
    assert "continuing with 2 in 0 s" in harness.coordinator.phase_message(harness.now())
    harness.wait(0.2)
    assert started(harness) == [[0, 1, 2], [1, 2]]
    recovery = harness.coordinator.history.recoveries[-1]
    assert (recovery["kind"], recovery["fromReplicas"], recovery["toReplicas"]) == ("Pod", 3, 2)
    assert recovery["seconds"]["schedule"] == pytest.approx(9.1)
    assert reasons(harness) == ["GroupShrunk"]
    assert harness.coordinator.size == 2


def test_wait_for_a_terminating_pod_begins_at_its_end() -> None:
    """The pod can't be back while its workers save."""
    harness = elastic()
    harness.receive(0, "leaving", grace=60.0)
    harness.stopped(1, 2)
    harness.wait(30)
    harness.stopped(0)
    harness.leave(0)
    harness.wait(9)
    assert len(started(harness)) == 1
    harness.wait(1.1)
    assert started(harness)[1:] == [[1, 2]]


def test_pod_that_returns_in_time_keeps_the_size() -> None:
    harness = elastic()
    harness.leave(0)
    harness.stopped(1, 2)
    harness.wait(9)
    harness.join(0, generation=1, incarnation="new")
    assert started(harness) == [[0, 1, 2], [0, 1, 2]]
    assert reasons(harness) == []
    assert "fromReplicas" not in harness.coordinator.history.recoveries[-1]


def test_pod_that_comes_and_goes_does_not_prolong_the_wait() -> None:
    harness = elastic(4)
    harness.leave(0)
    harness.leave(1)
    harness.stopped(2, 3)
    for generation in range(1, 10):
        harness.wait(1)
        harness.join(0, generation, incarnation=f"new{generation}")
        harness.leave(0, generation)
    harness.wait(1.1)
    assert started(harness)[1:] == [[2, 3]]


def test_failure_in_a_smaller_group_is_answered_at_once() -> None:
    """Nobody waits again for a pod that is known to be away."""
    harness = elastic()
    harness.leave(0)
    harness.stopped(1, 2)
    harness.wait(11)
    harness.fail(1, attempt=2)
    harness.stopped(1, 2, attempt=2)
    assert started(harness)[2:] == [[1, 2]]
    harness.leave(2)
    harness.stopped(1, attempt=3)
    harness.wait(100)
    assert len(started(harness)) == 3, "one pod is less than minReplicas"
    assert "2 are needed, and 1 of them are there" in harness.coordinator.phase_message(harness.now())


def test_group_without_a_volume_does_not_shrink_below_a_majority() -> None:
    harness = elastic(5, 1, has_volume=False)
    promise(harness)
    for ordinal in (0, 1, 2):
        harness.leave(ordinal)
    harness.stopped(3, 4)
    harness.wait(100)
    assert len(started(harness)) == 1
    harness.wait(100)
    text = "2 of 5 pods are no majority: without a checkpoint volume the group needs 3 to continue"
    assert [line for line in harness.log if line == text] == [text]
    harness.join(0, generation=1, incarnation="new")
    promise(harness, returned=0)
    assert started(harness)[1:] == [[0, 3, 4]]


def test_first_attempt_waits_a_minute_for_pods_that_never_came() -> None:
    """A pull of the image takes longer than the return of a pod."""
    harness = elastic(joined=2)
    harness.wait(59)
    assert started(harness) == []
    harness.wait(2)
    assert started(harness) == [[0, 1]]
    assert [event["message"] for event in harness.coordinator.history.events] == [
        "the group trains with 2 pods instead of 3"
    ]


def test_new_coordinator_waits_before_it_continues_with_fewer() -> None:
    harness = elastic()
    new = elastic(joined=0, history=harness.coordinator.history)
    history = harness.coordinator.history.to_json()
    for ordinal in (1, 2):
        new.join(ordinal, attempt=1, history=history)
    new.wait(9)
    assert started(new) == []
    new.wait(2)
    assert started(new) == [[1, 2]]


# --- members ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordinals", [[], [0], [0, 1, 2], [1, 2, 5, 7, 8], list(range(512))])
def test_members_survive_their_json(ordinals: list[int]) -> None:
    history = History()
    history.members = Members.of(ordinals)
    back = History.from_json(history.to_json()).members
    assert (back.ordinals(), len(back)) == (ordinals, len(ordinals))


@pytest.mark.parametrize("raw", [None, [3], [2, 1], [0, 2**60], [0, True], [0, 5, 3, 9], ["0", 1], [-1, 2], {}])
def test_malformed_members_are_none(raw: Any) -> None:
    assert Members.from_json(raw).ordinals() == []
