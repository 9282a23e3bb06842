"""The number of an attempt: one more than anyone knows, and written into the lease before it counts."""

from __future__ import annotations

import pytest

from dtj_agent import names
from dtj_agent.history import History
from tests.agent.bench import Bench

NUMBERS = {
    "the first": ({}, [0, 0], 1),
    "the operator's floor": ({"attempt_floor": 7}, [0, 0], 7),
    "what a peer remembers": ({}, [0, 4], 5),
    "the floor is below": ({"attempt_floor": 3}, [6, 0], 7),
}


@pytest.mark.parametrize(("rules", "known", "attempt"), NUMBERS.values(), ids=NUMBERS)
def test_an_attempts_number_is_one_more_than_all_that_anyone_knows(rules: dict[str, int], known: list[int], attempt: int) -> None:
    bench = Bench(2, **rules)
    for ordinal, number in enumerate(known):
        bench.join(ordinal, attempt=number)
    assert bench.messages("start")[0][1]["attempt"] == attempt


def test_a_lease_that_is_taken_raises_the_number() -> None:
    bench = Bench(1)
    bench.grants = False
    bench.join(0)
    bench.grants = True
    bench.do(bench.coordinator.lease_done(1, 8, None, bench.now()))
    assert (bench.leases, bench.messages("start")[0][1]["attempt"]) == ([1, 9], 9)


def test_a_lease_that_another_has_written_since_ends_this_coordinators_attempts() -> None:
    """Pod 0 was made anew, and this one lives on: it must not outbid the new one, whose workers would lose their lease."""
    bench = Bench(1)
    bench.join(0)
    bench.fail(0)
    bench.grants = False
    bench.stopped(0)
    bench.do(bench.coordinator.lease_done(2, 2, None, bench.now()))
    bench.time += 100
    bench.do(bench.coordinator.tick(bench.now()))
    assert (bench.leases, len(bench.messages("start"))) == ([1, 2], 1)
    assert (bench.coordinator.phase, bench.coordinator.phase_reason) == ("Rendezvous", "CheckpointLeaseLost")


def test_a_lease_that_stands_there_after_an_error_is_this_coordinators_own() -> None:
    """The volume failed after the rename."""
    bench = Bench(1)
    bench.join(0)
    bench.fail(0)
    bench.grants = False
    bench.stopped(0)
    bench.do(bench.coordinator.lease_done(2, None, "Input/output error", bench.now()))
    bench.time += 2
    bench.do(bench.coordinator.tick(bench.now()))
    bench.do(bench.coordinator.lease_done(2, 2, None, bench.now()))
    assert bench.leases == [1, 2, 2, 3]


def test_a_lease_that_hangs_is_said_after_its_deadline_and_an_old_answer_counts_for_nothing() -> None:
    bench = Bench(1)
    bench.grants = False
    bench.join(0)
    bench.time += names.LEASE_DEADLINE_SECONDS + 1
    bench.do(bench.coordinator.tick(bench.now()))
    assert bench.coordinator.phase_reason == "CheckpointVolumeUnavailable"
    assert "has not answered" in bench.coordinator.history.events[-1]["message"]
    bench.do(bench.coordinator.lease_done(99, None, None, bench.now()))
    assert not bench.messages("start")


def test_a_member_that_leaves_before_the_lease_is_written_is_waited_for() -> None:
    bench = Bench(2)
    bench.grants = False
    bench.join(0)
    bench.join(1)
    bench.leave(1)
    bench.do(bench.coordinator.lease_done(1, None, None, bench.now()))
    assert not bench.messages("start")
    bench.grants = True
    bench.join(1, generation=1)
    assert bench.messages("start")[0][1]["attempt"] == 2


def test_an_agent_that_has_seen_a_later_attempt_than_this_coordinator_started_is_refused() -> None:
    """Another coordinator has started that one: it has replaced this one."""
    bench = Bench(2).running()
    bench.leave(1)
    bench.join(1, generation=1, attempt=2)
    assert bench.closed == [11]
    bench.join(1, generation=2, attempt=1)
    assert bench.closed == [11]


def test_an_attempt_is_numbered_anew_if_one_who_joins_while_its_lease_is_written_knows_a_later_one() -> None:
    bench = Bench(1)
    bench.grants = False
    bench.join(0)
    past = History()
    past.attempt = 7
    bench.join(1, attempt=7, history=past.to_json())  # a stand-in that is not needed now, but remembers
    assert bench.leases == [1]
    bench.do(bench.coordinator.lease_done(1, None, None, bench.now()))
    assert not bench.messages("start")
    assert bench.leases == [1, 8]
