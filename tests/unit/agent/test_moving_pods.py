"""Pods that a restart rule moves to other nodes (RestartElsewhere), and the spares that take their ranks."""

from __future__ import annotations

from typing import Any

from dtj_agent.group import restart_rules
from dtj_contract import names
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.formation_harness import reasons, recoveries, started, with_spare

ELSEWHERE = restart_rules.read([{"exitCodes": [7], "action": "RestartElsewhere"}])[0]


def to_move(ordinal: int = 1, **spec: Any) -> CoordinatorHarness:
    """Returns a group of two, and a spare, with a pod that is to move to another node."""
    harness = with_spare(rules=ELSEWHERE, **spec)
    harness.fail(ordinal, exit_code=7)
    harness.stopped(0, 1)
    return harness


def test_spare_takes_the_ranks_of_a_pod_that_is_to_move_at_once() -> None:
    harness = to_move()
    assert started(harness) == [[0, 1], [0, 2]]
    assert recoveries(harness) == [("Spare", "WorkerFailed", True)]
    assert reasons(harness) == ["SpareUsed"]
    assert harness.logged("the group starts without j-1, which is to be replaced on another node")


def test_pod_that_has_moved_is_the_new_spare() -> None:
    harness = to_move()
    harness.receive(1, "leaving", grace=0.0)
    harness.leave(1)
    harness.join(1, generation=1, incarnation="moved", node="w9")
    harness.wait(100)
    assert (harness.coordinator.phase, len(started(harness))) == ("Running", 2)
    harness.leave(2)
    harness.stopped(0, attempt=2)
    assert started(harness)[2:] == [[0, 1]]


def test_pod_that_is_to_move_waits_again_if_the_spare_is_lost() -> None:
    harness = to_move()
    harness.leave(2)
    harness.stopped(0, attempt=2)
    assert harness.coordinator.phase_message(harness.now()) == "waiting for j-1 to be replaced on another node"
    harness.wait(names.ELSEWHERE_SECONDS)
    assert started(harness)[2:] == [[0, 1]]


def test_pod_that_is_to_move_waits_again_if_the_spare_is_lost_before_the_lease() -> None:
    harness = with_spare(rules=ELSEWHERE, has_volume=True)
    harness.grants = False
    harness.fail(1, exit_code=7)
    harness.stopped(0, 1)
    assert harness.leases == [1, 2]
    harness.leave(2)
    harness.do(harness.coordinator.lease_done(2, None, None, harness.now()))
    assert started(harness) == [[0, 1]]
    assert harness.coordinator.phase_message(harness.now()) == "waiting for j-1 to be replaced on another node"


def test_pod_that_was_not_moved_in_time_keeps_its_ranks() -> None:
    harness = with_spare(rules=ELSEWHERE)
    harness.leave(2)
    harness.fail(1, exit_code=7)
    harness.stopped(0, 1)
    harness.wait(names.ELSEWHERE_SECONDS)
    harness.join(2, generation=1, incarnation="new")
    harness.fail(1, attempt=2)
    harness.stopped(0, 1, attempt=2)
    harness.wait(2)
    assert started(harness) == [[0, 1], [0, 1], [0, 1]]


def test_spare_that_returns_ends_the_wait_for_the_pod_that_is_to_move() -> None:
    harness = with_spare(rules=ELSEWHERE)
    harness.leave(2)
    harness.fail(1, exit_code=7)
    harness.stopped(0, 1)
    harness.wait(5)
    assert len(started(harness)) == 1
    harness.join(2, generation=1, incarnation="new")
    assert started(harness)[1:] == [[0, 2]]


def test_spare_waits_for_the_end_of_a_leader_that_is_to_move() -> None:
    harness = to_move(0)
    assert len(started(harness)) == 1
    assert harness.coordinator.phase_message(harness.now()) == "waiting for j-0 to be replaced on another node"
    harness.wait(names.ELSEWHERE_SECONDS)
    assert len(started(harness)) == 2


def test_both_pods_that_are_to_move_are_spared() -> None:
    harness = with_spare(3, 1, rules=ELSEWHERE)
    harness.fail(1, exit_code=7)
    harness.stopped(0, 1, 2)
    harness.fail(2, exit_code=7, attempt=2)
    harness.stopped(0, 2, 3, attempt=2)
    assert started(harness) == [[0, 1, 2], [0, 2, 3]]
    harness.leave(1)
    harness.join(1, generation=1, incarnation="moved", node="w9")
    harness.wait(2)
    assert started(harness)[2:] == [[0, 1, 3]]
