"""Each broken attempt is charged once and each failure listed once, however many coordinators account for it."""

from __future__ import annotations

from typing import Any

import pytest

from dtj_agent.group import restart_rules
from dtj_agent.group.history import History
from dtj_agent.group.members import Members
from dtj_contract import names
from dtj_contract.operator_message import LostPod, OperatorMessage
from tests.unit.agent.coordinator_harness import CoordinatorHarness
from tests.unit.agent.test_outrun import past

BROKE = {"attempt": 5, "silence": 0.1, "ago": 0.1, "step": None, "leader": 0}
CRASHED = {"attempt": 5, "crashed": True, "interrupted": BROKE}
KILL = LostPod("j-1", "10.0.0.1", "OOMKilled", False, 1_790_000_100.0)


def leader(history: History, ordinal: int, **spec: Any) -> CoordinatorHarness:
    """Returns the coordinator in pod `ordinal` of three, which begins with what it remembers."""
    spec.setdefault("max_restarts", 5)
    spec.setdefault("has_volume", False)
    return CoordinatorHarness(3, history=history.copy(), ordinal=ordinal, **spec)


def gather(harness: CoordinatorHarness, *, without: int = -1, **hellos: dict[str, Any]) -> History:
    """Joins the pods, which remember what the coordinator does; returns the coordinator's history."""
    for ordinal in (0, 1, 2):
        if ordinal != without:
            own = {"attempt": 5, "interrupted": BROKE, **hellos.get(f"pod{ordinal}", {})}
            harness.join(ordinal, history=harness.coordinator.history.to_json(), **own)
    return harness.coordinator.history


def listed(history: History) -> list[tuple[str, int]]:
    return [(failure["reason"], failure["ordinal"]) for failure in history.failures]


def held(history: History, **spec: Any) -> History:
    """Returns the memory of a coordinator that has charged the crash in pod 1, and was lost before it could start."""
    first = leader(history, 2, **spec)
    first.promises = False
    after = gather(first, pod1=CRASHED)
    first.wait(names.CRASH_CAUSE_SECONDS + 1)
    assert (after.attempt, after.restarts["counted"], after.charged) == (5, 1, 5)
    assert listed(after) == [("AgentCrashed", 1)]
    return after


def test_crash_that_two_coordinators_list_is_charged_and_listed_once() -> None:
    second = leader(held(past(3)), 1)
    after = gather(second, pod1=CRASHED)
    assert after.attempt == 6
    assert (after.restarts["counted"], len(after.spent), after.without_progress) == (1, 1, 1)
    assert listed(after) == [("AgentCrashed", 1)]
    assert after.recoveries[-1]["counted"], "the coordinator before has charged it"


def test_crash_of_the_next_attempt_is_charged_again() -> None:
    second = leader(held(past(3)), 1)
    gather(second, pod1=CRASHED)
    second.leave(0)
    second.stopped(1, 2, attempt=6)
    second.join(0, generation=1, attempt=6, crashed=True, interrupted={**BROKE, "attempt": 6})
    history = second.coordinator.history
    assert (history.attempt, history.restarts["counted"]) == (7, 2)
    assert listed(history) == [("AgentCrashed", 1), ("AgentCrashed", 0)]


def test_charge_that_only_a_member_remembers_is_not_repeated() -> None:
    charged = held(past(3))
    second = leader(past(3), 1, max_restarts=1)
    second.join(1, history=past(3).to_json(), **CRASHED)
    for ordinal in (0, 2):
        second.join(ordinal, attempt=5, interrupted=BROKE, history=charged.to_json())
    history = second.coordinator.history
    assert (second.coordinator.outcome, history.attempt, history.restarts["counted"]) == (None, 6, 1)


def test_crash_that_was_listed_but_not_charged_is_charged_by_the_next_coordinator() -> None:
    first = leader(past(3), 2)
    listing = gather(first, without=0, pod1=CRASHED)
    assert (listed(listing), listing.charged) == ([("AgentCrashed", 1)], 0)
    after = gather(leader(listing, 1), pod1=CRASHED)
    assert (after.attempt, after.restarts["counted"], listed(after)) == (6, 1, [("AgentCrashed", 1)])


@pytest.mark.parametrize("action", ["Fail", "RestartFree"])
def test_rule_about_memory_decides_also_at_the_next_coordinator(action: str) -> None:
    rules = restart_rules.read([{"reasons": ["OOMKilled"], "action": action}])[0]
    first = leader(past(3), 2, rules=rules)
    listing = gather(first, without=0, pod1=CRASHED)
    assert listed(listing) == [("AgentCrashed", 1)]
    second = leader(listing, 1, rules=rules)
    gather(second, pod1=CRASHED)
    assert second.coordinator.history.attempt == 5, "it waits for the cause"
    second.do(second.coordinator.handed_over(OperatorMessage(None, (KILL,)), second.now()))
    final, history = second.coordinator.outcome, second.coordinator.history
    assert (final and final["reason"]) == ("RestartRule" if action == "Fail" else None)
    assert (listed(history), history.restarts["counted"]) == ([("OOMKilled", 1)], 0)


def test_rule_that_fails_the_job_holds_also_after_a_charge() -> None:
    rules = restart_rules.read([{"reasons": ["OOMKilled"], "action": "Fail"}])[0]
    second = leader(held(past(3), rules=rules), 1, rules=rules)
    gather(second, pod1=CRASHED)
    second.do(second.coordinator.handed_over(OperatorMessage(None, (KILL,)), second.now()))
    final = second.coordinator.outcome
    assert (final and final["reason"]) == "RestartRule"


def test_cause_of_a_crash_that_is_known_stays_known_to_the_next_coordinator() -> None:
    first = leader(past(3), 2)
    listing = gather(first, without=0, pod1=CRASHED)
    first.do(first.coordinator.handed_over(OperatorMessage(None, (KILL,)), first.now()))
    assert listed(listing) == [("OOMKilled", 1)]
    after = gather(leader(listing, 1), pod1=CRASHED)
    assert (after.attempt, after.restarts["counted"], listed(after)) == (6, 1, [("OOMKilled", 1)])


def test_notes_that_a_member_was_sent_and_brings_back_are_listed_once() -> None:
    harness = leader(past(3), 1)
    harness.join(1, history=past(3).to_json(), **CRASHED)
    harness.coordinator.history.event("Warning", "CheckpointSlow", "it is slow", 1.0)
    for generation in (1, 2):
        sent = harness.coordinator.history.to_json()
        harness.join(2, generation=generation, attempt=5, interrupted=BROKE, history=sent)
        harness.leave(2, generation=generation)
    history = harness.coordinator.history
    assert [event["reason"] for event in history.events] == ["CheckpointSlow"]
    assert listed(history) == [("AgentCrashed", 1)]


# --- the loss of the coordinator itself -------------------------------------------------------------------------------

NEW_POD = {"attempt": 0, "interrupted": None, "incarnation": "new", "node": "elsewhere"}


def test_lost_coordinator_is_listed_as_any_other_lost_pod() -> None:
    history = gather(leader(past(3), 1), pod0=NEW_POD)
    (failure,) = history.failures
    assert (failure["reason"], failure["attempt"], failure["ordinal"], failure["pod"]) == ("PodLost", 5, 0, "j-0")
    assert (failure["rank"], failure["node"], failure["message"]) == (0, "", "pod j-0 was lost")
    assert (len(history.pod_losses), history.restarts["counted"]) == (1, 0)


def test_lost_coordinator_is_listed_once_by_two_that_follow() -> None:
    first = leader(past(3), 1)
    first.promises = False
    listing = gather(first, pod0=NEW_POD)
    second = leader(listing, 2)
    history = gather(second, pod0=NEW_POD)
    assert (history.attempt, listed(history), len(history.pod_losses)) == (6, [("PodLost", 0)], 1)


def test_coordinator_whose_agent_crashed_is_no_lost_pod() -> None:
    history = gather(leader(past(3), 1), pod0=CRASHED)
    assert (listed(history), history.restarts["counted"]) == ([("AgentCrashed", 0)], 1)


def test_lost_coordinator_whose_rank_a_spare_takes_is_listed() -> None:
    harness = CoordinatorHarness(2, history=past(2), ordinal=1, spares=1)
    for ordinal in (1, 2):
        harness.join(ordinal, attempt=5, interrupted=BROKE if ordinal == 1 else None)
    history = harness.coordinator.history
    assert (history.attempt, listed(history)) == (6, [("PodLost", 0)])


def test_rank_of_a_loss_is_the_same_at_the_next_coordinator() -> None:
    """The operator knows a failure by its rank, too: with another one it would list the loss twice."""
    history = past(3)
    history.members = Members.of([1, 2])
    harness = CoordinatorHarness(2, history=history, ordinal=1, spares=1)
    harness.join(1, attempt=5, interrupted=BROKE)
    harness.join(2, **CRASHED)
    (failure,) = (failure for failure in harness.coordinator.history.failures if failure["ordinal"] == 2)
    assert (failure["reason"], failure["rank"]) == ("AgentCrashed", 2)


# --- completed work ---------------------------------------------------------------------------------------------------


def test_completed_work_ends_the_job_before_a_charge_could_fail_it() -> None:
    harness = leader(past(3), 1, max_restarts=0)
    harness.join(1, history=past(3).to_json(), **CRASHED)
    harness.leave(1)
    for ordinal in (0, 1, 2):
        harness.join(ordinal, generation=1, state="done", attempt=5)
    final = harness.coordinator.outcome
    assert (final and final["reason"]) == "AllWorkersSucceeded"


def test_agents_that_the_restart_of_their_nodes_ended_cost_no_budget() -> None:
    """Power fails in the whole rack, which is not the job's fault; whichever pod is back first leads."""
    old = CoordinatorHarness(2, max_restarts=0).running()
    for first, second in ((0, 1), (1, 0)):
        harness = CoordinatorHarness(2, old.coordinator.history.copy(), ordinal=first, max_restarts=0)
        broke = {"attempt": 1, "silence": 0.0, "ago": 0.0, "step": 30, "leader": 0}
        for ordinal in (first, second):
            harness.join(ordinal, incarnation="new", crashed=True, rebooted=True, attempt=1, interrupted=broke)
        after = harness.coordinator.history
        assert harness.coordinator.outcome is None
        assert (after.attempt, after.restarts["counted"]) == (2, 0)
        assert {f["reason"] for f in after.failures} == {"NodeLost"}
        assert after.failures[0]["message"].endswith("was lost with its node, which has restarted")
        assert after.failures[0]["ownFault"], "free three times without progress, and then counted"
