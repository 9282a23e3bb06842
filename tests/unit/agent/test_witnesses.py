"""A pod that has lost its memory counts towards no majority until it is taught."""

from __future__ import annotations

import pytest

from dtj_agent.group.member import Identity, Member, Save
from dtj_agent.group.messages import Now
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.formation_harness import started, with_spare
from tests.unit.agent.test_attempt_number import promised
from tests.unit.agent.test_member import START
from tests.unit.agent.test_outrun import OUTRUN, join, past

NEW = {"remembers": False}


def after_a_loss(**spec: bool) -> CoordinatorHarness:
    """Returns a new coordinator in pod 0 of two and a spare, which remembers attempt 5; another may lead the others."""
    harness = CoordinatorHarness(2, spares=1, history=past(2), **{"has_volume": False, **spec})
    harness.promises = harness.grants = False
    join(harness, 0)
    return harness


def test_promise_of_a_new_pod_makes_no_majority_while_others_are_away() -> None:
    harness = after_a_loss()
    harness.join(2, **NEW)
    harness.wait(names.TAKEOVER_SECONDS)
    promised(harness, 0, 2, attempt=6)
    assert started(harness) == []
    waits = "too few of the pods here remember the last attempt (new: j-2); continuing in 50 s"
    assert harness.coordinator.phase_message(harness.now()) == waits


def test_new_pod_counts_once_all_pods_have_promised() -> None:
    """The third one may only be thought to be here, and have promised the number to another coordinator."""
    harness = after_a_loss()
    harness.join(2, **NEW)
    promised(harness, 0, 2, attempt=6)
    join(harness, 1)
    harness.wait(1)
    assert started(harness) == []
    promised(harness, 1, attempt=6)
    assert started(harness) == [[0, 1]]


def test_new_pods_are_a_majority_once_all_pods_have_promised() -> None:
    harness = after_a_loss()
    for ordinal in (1, 2):
        harness.join(ordinal, **NEW)
    promised(harness, 1, 2, attempt=6)
    assert started(harness) == []
    promised(harness, 0, attempt=6)
    assert started(harness) == [[0, 1]]


def test_new_pod_counts_after_a_minute() -> None:
    harness = after_a_loss()
    harness.join(2, **NEW)
    harness.wait(names.TAKEOVER_SECONDS)
    promised(harness, 0, 2, attempt=6)
    harness.wait(names.FIRST_START_SECONDS - names.TAKEOVER_SECONDS - 1)
    assert started(harness) == []
    harness.wait(1)
    assert started(harness) == [[0, 2]]


def test_new_pods_start_the_first_attempt_although_a_spare_has_no_room() -> None:
    harness = CoordinatorHarness(2, spares=1, has_volume=False)
    for ordinal in (0, 1):
        harness.join(ordinal, **NEW)
    harness.wait(names.TAKEOVER_SECONDS)
    assert started(harness) == [[0, 1]]
    assert all(peer.remembers for peer in harness.coordinator.peers.values())


@pytest.mark.parametrize("past_of_one", [{"promised": 5}, {"history": past(2).to_json()}], ids=["promise", "history"])
def test_pods_that_remember_nothing_wait_if_one_has_heard_of_an_attempt(past_of_one: dict[str, object]) -> None:
    """The others, which are away, have started it, and may have ended the job."""
    harness = CoordinatorHarness(2, spares=1, has_volume=False)
    harness.join(0, **NEW, **past_of_one)
    harness.join(2, **NEW)
    harness.wait(names.FIRST_START_SECONDS - 1)
    assert started(harness) == []
    harness.wait(1)
    assert started(harness) == [[0, 2]]


def test_promise_ends_with_the_link_of_its_agent() -> None:
    harness = CoordinatorHarness(3, has_volume=False)
    harness.promises = False
    for ordinal in (0, 1, 2):
        harness.join(ordinal)
    promised(harness, 1, attempt=1)
    harness.leave(1)
    promised(harness, 0, attempt=1)
    harness.join(1, generation=1)
    assert started(harness) == []
    promised(harness, 2, attempt=1)
    assert started(harness) == [[0, 1, 2]]


def taught(harness: CoordinatorHarness) -> list[tuple[int, int]]:
    return [(ordinal, message["attempt"]) for ordinal, message in harness.messages("remember")]


def beats(harness: CoordinatorHarness, *ordinals: int) -> None:
    for ordinal in ordinals:
        harness.receive(ordinal, "beat")


def test_leader_teaches_a_new_pod_once_a_majority_was_heard_after_it_had_joined() -> None:
    harness = with_spare()
    harness.leave(2)
    harness.wait(1)
    harness.join(2, generation=1, incarnation="new", **NEW)
    harness.wait(1)
    assert taught(harness) == []
    beats(harness, 0)
    harness.wait(1)
    assert taught(harness) == [], "one of three is no majority"
    beats(harness, 1)
    harness.wait(1)
    harness.wait(1)
    assert taught(harness) == [(2, 1)]
    assert harness.coordinator.peers[2].remembers


def test_many_new_pods_cost_no_message_each_to_all_others() -> None:
    """The heartbeats of the next two seconds teach them."""
    harness = with_spare(5, 2)
    for ordinal in (5, 6):
        harness.leave(ordinal)
    harness.wait(1)
    for ordinal in (5, 6):
        harness.join(ordinal, generation=1, incarnation="new", **NEW)
    assert len(harness.messages("promise")) == 5, "for the first one only"
    harness.time += 0.001
    beats(harness, 0, 1, 2, 3)
    harness.wait(1)
    assert sorted(taught(harness)) == [(5, 1), (6, 1)]


def test_new_pods_do_not_teach_each_other() -> None:
    harness = with_spare(2, 3)
    for ordinal in (2, 3, 4):
        harness.leave(ordinal)
        harness.join(ordinal, generation=1, incarnation="new", **NEW)
    harness.wait(1)
    beats(harness, 0, 1)
    for ordinal in (2, 3, 4):
        harness.receive(ordinal, "beat", generation=1)
    harness.wait(1)
    assert taught(harness) == []


def test_leader_asks_the_others_at_once_so_that_a_new_pod_counts() -> None:
    """A spare that has just come back must be ready to take the place of the next pod that is lost."""
    harness = with_spare()
    harness.leave(2)
    harness.wait(1)
    harness.join(2, generation=1, incarnation="new", **NEW)
    asked = [(ordinal, message["attempt"]) for ordinal, message in harness.messages("promise")]
    assert asked == [(0, 1), (1, 1)]
    harness.time += 0.001
    promised(harness, 0, 1, attempt=1, granted=False, known=1)
    assert taught(harness) == [(2, 1)]


def test_coordinator_that_has_started_nothing_teaches_nobody() -> None:
    harness = after_a_loss()
    join(harness, 1)
    harness.join(2, **NEW)
    harness.wait(1)
    beats(harness, 0, 1)
    harness.wait(1)
    assert taught(harness) == []


def test_first_start_lets_the_spares_count_too() -> None:
    harness = CoordinatorHarness(1, spares=2)
    for ordinal in (0, 1, 2):
        harness.join(ordinal, **NEW)
    assert started(harness) == [[0]]
    assert taught(harness) == [(1, 1), (2, 1)]


def test_later_start_teaches_its_members_only() -> None:
    harness = after_a_loss()
    harness.join(2, **NEW)
    harness.wait(names.FIRST_START_SECONDS)
    harness.leave(0)
    join(harness, 1)
    harness.join(0, generation=1, incarnation="new", **NEW)
    promised(harness, 1, 2, attempt=6)
    assert (started(harness), taught(harness)) == ([[0, 1]], [])
    assert not harness.coordinator.peers[2].remembers


def test_pod_that_comes_back_with_its_memory_counts() -> None:
    harness = after_a_loss()
    harness.join(2, **NEW)
    harness.leave(2)
    join(harness, 2)
    harness.wait(names.TAKEOVER_SECONDS)
    promised(harness, 0, 2, attempt=6)
    assert started(harness) == [[0, 2]]


def test_outrun_pod_does_not_continue_with_a_new_one() -> None:
    """The lease is taken: others have started attempt 6, and may have ended the job."""
    harness = after_a_loss(has_volume=True)
    harness.join(2, **NEW)
    harness.wait(names.TAKEOVER_SECONDS)
    harness.do(harness.coordinator.lease_done(6, 6, None, harness.now()))
    harness.wait(1)
    assert (harness.leases, harness.coordinator.phase_message(harness.now())) == ([6], OUTRUN)
    join(harness, 1)
    assert harness.leases == [6, 7]


def test_new_pods_alone_do_not_outrun_a_group_whose_lease_they_meet() -> None:
    harness = CoordinatorHarness(2, spares=1, has_volume=True)
    harness.grants = False
    for ordinal in (0, 1):
        harness.join(ordinal, **NEW)
    harness.wait(names.TAKEOVER_SECONDS)
    harness.do(harness.coordinator.lease_done(1, 4, None, harness.now()))
    harness.wait(1)
    assert harness.leases == [1]
    harness.wait(names.FIRST_START_SECONDS)
    assert harness.leases == [1, 5]


def test_new_coordinator_charges_no_crash_while_most_pods_here_are_new() -> None:
    """Others may have gone on: a spent budget would end the job that they continue."""
    harness = CoordinatorHarness(2, spares=1, has_volume=True, max_restarts=0)
    harness.join(0, **NEW)
    broke = {"attempt": 5, "silence": 0.1, "ago": 0.1, "step": None, "leader": 0}
    crashed = {"attempt": 5, "history": past(2).to_json(), "crashed": True, "interrupted": broke}
    harness.join(1, **crashed)
    harness.wait(names.CRASH_CAUSE_SECONDS)
    assert (harness.coordinator.outcome, harness.leases) == (None, [])
    assert harness.coordinator.phase_message(harness.now()).startswith("too few of the pods here remember")
    harness.join(2, attempt=5)
    harness.wait(1)
    assert harness.coordinator.outcome is not None
    assert harness.coordinator.outcome["reason"] == "RestartBudgetSpent"


def test_new_coordinator_waits_longer_where_a_pod_has_completed_the_last_attempt() -> None:
    """The other members may have completed it too, and have ended the job."""
    harness = CoordinatorHarness(2, spares=1, history=past(2), has_volume=True, ordinal=1)
    harness.join(1, attempt=5, state="done", history=past(2).to_json())
    join(harness, 2, attempt=0)
    harness.wait(names.TAKEOVER_SECONDS)
    assert harness.leases == []
    harness.wait(names.FIRST_START_SECONDS - names.TAKEOVER_SECONDS)
    assert harness.leases == [6]


def test_new_coordinator_waits_longer_where_the_others_are_new() -> None:
    harness = CoordinatorHarness(2, spares=1, history=past(2), has_volume=True)
    harness.join(0, history=past(2).to_json())
    harness.join(1, **NEW)
    harness.wait(names.TAKEOVER_SECONDS)
    assert harness.leases == []
    harness.wait(names.FIRST_START_SECONDS - names.TAKEOVER_SECONDS)
    assert harness.leases == [6]


@pytest.mark.parametrize(("saved", "final", "remembers"), [
    ({}, None, False),
    ({"attempt": 0, "promised": 3}, None, False),
    ({"attempt": 2}, None, True),
    ({"attempt": 0, "remembers": True}, None, True),
    ({}, {"uid": "uid", "attempt": 2, "result": "Succeeded"}, True),
], ids=["new", "promised only", "of an older version", "taught", "finished"])  # fmt: skip
def test_member_reports_whether_it_remembers(
    saved: dict[str, object], final: dict[str, object] | None, remembers: bool
) -> None:
    assert _member(saved, final).hello(Now(0.0, 0.0))["remembers"] is remembers


def test_member_remembers_once_it_is_started() -> None:
    one = _member({})
    one.received(START, Now(0.0, 0.0))
    assert (one.saved()["remembers"], one.hello(Now(0.0, 0.0))["remembers"]) == (True, True)


def test_member_that_is_taught_keeps_it() -> None:
    one = _member({"promised": 3})
    assert one.received({"type": "remember", "attempt": 7}, Now(0.0, 0.0)) == [Save()]
    assert (one.saved()["remembers"], one.saved()["promised"]) == (True, 7)
    one.received({"type": "remember", "attempt": 5}, Now(0.0, 0.0))
    assert one.saved()["promised"] == 7


def _member(saved: dict[str, object], final: dict[str, object] | None = None) -> Member:
    return Member(Identity("uid", 2, "i2", "j-2", "w2", "10.0.0.2", 5.0), dict(saved), final)
